"""Writes `notebook.ipynb` and the readings it looks at, `greenhouse_week.csv`.

The cells below are run in order, as Jupyter would run them, and what they print and return becomes
their outputs; nothing beyond the standard library is needed. The same script gives the same bytes.

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
from pathlib import Path
from random import Random
from typing import Any

HERE = Path(__file__).resolve().parent
CSV_NAME = "greenhouse_week.csv"
# Brightness of each day from Monday to Sunday; Thursday was dull.
DAYS = (0.9, 0.8, 1.0, 0.25, 0.6, 0.95, 0.85)

CELLS = (
    (
        "markdown",
        "# A week in bay 3\n\nHourly readings of one greenhouse bay from Monday 6 to Sunday 12 May: "
        "air temperature, relative humidity, light and the position of the vents. The question is "
        "whether the vents open too late on bright days.",
    ),
    (
        "code",
        "import csv\nfrom collections import defaultdict\nfrom statistics import mean\n\n"
        'with open("greenhouse_week.csv", newline="") as file:\n'
        "    rows = [{k: v if k == 'time' else float(v) for k, v in row.items()}\n"
        "            for row in csv.DictReader(file)]\n\n"
        'print(len(rows), "readings, the first:")\nrows[0]',
    ),
    (
        "markdown",
        "## Day by day\n\nThe light sum of a day is the mean light in W/m² times 8.64, in J/cm².",
    ),
    (
        "code",
        "days = defaultdict(list)\nfor row in rows:\n    days[row['time'][:10]].append(row)\n\n"
        "print('day         mean °C   max °C   light sum')\nfor day, hours in days.items():\n"
        "    temperature = [h['temperature_c'] for h in hours]\n"
        "    light_sum = mean(h['light_w_m2'] for h in hours) * 8.64\n"
        "    print(f'{day}  {mean(temperature):7.1f}  {max(temperature):7.1f}  {light_sum:10.0f}')",
    ),
    (
        "markdown",
        "Thursday 9 May was dull: its light sum is far below that of the other days, and the bay "
        "stayed cool without any help from the vents.",
    ),
    (
        "code",
        "LIMIT_C = 27.0\n\nhot = [row for row in rows if row['temperature_c'] > LIMIT_C]\n"
        "closed = [row for row in hot if row['vents_percent'] < 50]\n"
        "print(f'{len(hot)} hours above {LIMIT_C} °C, {len(closed)} of them with the vents less "
        "than half open')\nsorted({row['time'][11:16] for row in closed})",
    ),
    (
        "code",
        "import struct\nimport zlib\n\n\nclass HeatMap:\n"
        '    """Temperature by day (down) and hour (across), white is hot."""\n\n'
        "    def __repr__(self):\n        return '<HeatMap of 7 days>'\n\n"
        "    def _repr_png_(self):\n        low, high, size = 14.0, 32.0, 6\n        lines = b''\n"
        "        for hours in days.values():\n"
        "            grey = bytes(int(255 * (h['temperature_c'] - low) / (high - low)) for h in hours)\n"
        "            lines += (b'\\0' + b''.join(bytes([g]) * size for g in grey)) * size\n\n"
        "        def chunk(kind, data):\n            checksum = zlib.crc32(kind + data)\n"
        "            return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', checksum)\n\n"
        "        header = struct.pack('>IIBBBBB', 24 * size, 7 * size, 8, 0, 0, 0, 0)\n"
        "        return (b'\\x89PNG\\r\\n\\x1a\\n' + chunk(b'IHDR', header)\n"
        "                + chunk(b'IDAT', zlib.compress(lines, 0)) + chunk(b'IEND', b''))\n\n\n"
        "HeatMap()",
    ),
    (
        "markdown",
        "## What follows\n\nThe hours in which it was too warm with the vents less than half open all lie "
        "before noon. The averaging of the light is the likely cause: it hides the rise of the "
        "morning from the light supplement. Next week the averaging time will be set to 10 minutes "
        "instead of 20.",
    ),
)


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
    for number, (kind, source) in enumerate(CELLS, start=1):
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
