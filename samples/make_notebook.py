"""Writes `notebook.ipynb` and the readings it looks at, `greenhouse_week.csv`.

The cells stand in `notebook.md`. They are run in order, as Jupyter would run them, and what they
print and return becomes their outputs; nothing beyond the standard library is needed. The same
script gives the same bytes.

Run: python samples/make_notebook.py [-o FOLDER]
"""

import argparse
import ast
import base64
import contextlib
import io
import json
import math
import os
import re
from pathlib import Path
from random import Random
from typing import Any

HERE = Path(__file__).resolve().parent
CSV_NAME = "greenhouse_week.csv"
# Brightness of each day from Monday to Sunday; Thursday was dull.
DAYS = (0.9, 0.8, 1.0, 0.25, 0.6, 0.95, 0.85)

CODE_FENCE = re.compile(r"^```python\n(.*?)\n```$", re.DOTALL | re.MULTILINE)


def read_cells(text: str) -> list[tuple[str, str]]:
    """Kind and source of each cell: what stands in a fence is code, what stands between is not."""
    # With one group in the pattern, split gives text and code in turn.
    pieces = CODE_FENCE.split(text)
    cells = [("code" if i % 2 else "markdown", p.strip("\n")) for i, p in enumerate(pieces)]
    return [(kind, source) for kind, source in cells if source]


def write_week(path: Path) -> None:
    """A week of hourly readings that a greenhouse could have produced."""
    rng = Random(6)
    lines = ["time,temperature_c,humidity_percent,light_w_m2,vents_percent"]
    vents = 0.0
    for day, brightness in enumerate(DAYS):
        for hour in range(24):
            sun = max(0.0, math.sin(math.pi * (hour - 5) / 15.5)) if 5 < hour < 20.5 else 0.0
            light = 820 * brightness * sun * (0.92 + 0.16 * rng.random())
            temperature = 16.8 + light / 42 - vents / 14 + rng.random()
            humidity = 92 - 1.9 * (temperature - 16.5) + 3 * rng.random()
            lines.append(
                f"2024-05-{6 + day:02d} {hour:02d}:00,{temperature:.1f},{humidity:.0f},"
                f"{light:.0f},{vents:.0f}"
            )
            # The vents go only half the way in an hour, so that mornings overshoot.
            vents = (vents + min(100.0, max(0.0, (temperature - 21.5) * 13))) / 2
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")


def result_data(value: Any) -> dict[str, Any]:
    """What Jupyter would keep of a cell's value: its text, and its picture if it has one."""
    data: dict[str, Any] = {"text/plain": repr(value).splitlines(keepends=True)}
    if hasattr(value, "_repr_png_"):
        data["image/png"] = base64.b64encode(value._repr_png_()).decode() + "\n"
    return data


def run_cell(source: str, namespace: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Runs a code cell; returns its outputs in the notebook format."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "<cell>", "exec"), namespace)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), namespace)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        outputs.append({"name": "stdout", "output_type": "stream", "text": text})
    if value is not None:
        outputs.append(
            {
                "data": result_data(value),
                "execution_count": count,
                "metadata": {},
                "output_type": "execute_result",
            }
        )
    return outputs


def make_cells() -> list[dict[str, Any]]:
    """The cells with their outputs, in the notebook format; code is run in the current folder."""
    namespace: dict[str, Any] = {}
    cells: list[dict[str, Any]] = []
    count = 0
    source_text = (HERE / "notebook.md").read_text(encoding="utf-8")
    for number, (kind, source) in enumerate(read_cells(source_text), start=1):
        cell: dict[str, Any] = {
            "cell_type": kind,
            "id": f"cell-{number}",
            "metadata": {},
            "source": source.splitlines(keepends=True),
        }
        if kind == "code":
            count += 1
            cell["execution_count"] = count
            cell["outputs"] = run_cell(source, namespace, count)
        cells.append(cell)
    return cells


def build(folder: Path) -> None:
    """Writes the readings and the notebook into a folder."""
    write_week(folder / CSV_NAME)
    before = Path.cwd()
    os.chdir(folder)
    try:
        cells = make_cells()
    finally:
        os.chdir(before)
    notebook = {
        "cells": cells,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"file_extension": ".py", "name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    (folder / "notebook.ipynb").write_text(text, encoding="utf-8", newline="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes the sample notebook.")
    parser.add_argument("-o", "--output", type=Path, default=HERE, help="folder")
    build(parser.parse_args().output)


if __name__ == "__main__":
    main()
