"""Scores by depth and length as a picture: plain text, coloured on a terminal, or HTML."""

import html
from collections.abc import Sequence
from typing import Any

from hipcli.engine.evaluation.summary import METRICS, Grid, Line
from hipcli.terminal import formatting
from hipcli.terminal.console import Console
from hipcli.terminal.drawing import on_stderr

_STYLE = """
body { font: 14px system-ui, sans-serif; margin: 2em; color: #222; background: #fff; }
table { border-collapse: collapse; margin: 0 0 2em; }
th, td { padding: .3em .7em; text-align: right; border: 1px solid #ddd; }
th:first-child, td.name { text-align: left; }
caption { text-align: left; font-weight: 600; padding: .4em 0; }
"""


def length_name(tokens: int) -> str:
    """8192 as 8K, 1048576 as 1M, 5000 as 5,000."""
    for unit, letter in ((1 << 20, "M"), (1 << 10, "K")):
        if tokens % unit == 0:
            return f"{tokens // unit}{letter}"
    return formatting.count(tokens)


def depth_name(depth: float | None) -> str:
    """0.25 as 25 %; "spread" for needles all over the text."""
    return "spread" if depth is None else f"{depth * 100:g} %"


def plain(grids: Sequence[Grid]) -> str:
    """Grids of more than one cell as tables of text, a blank line before each."""
    parts = []
    for grid in _worth_showing(grids):
        header = ("depth", *map(length_name, grid.lengths))
        rows = [
            (
                depth_name(depth),
                *(shown_number(grid.values.get((depth, n)), 2) for n in grid.lengths),
            )
            for depth in grid.depths
        ]
        body = formatting.table(header, rows, right=range(1, len(header)))
        parts.append(f"\n{formatting.one_line(grid.title)}\n{body}")
    return "".join(parts)


def _worth_showing(grids: Sequence[Grid]) -> list[Grid]:
    # What a single cell holds stands in the table of means.
    return [grid for grid in grids if len(grid.values) > 1]


def table(lines: Sequence[Line]) -> str:
    """Means of every subject, task, haystack and length as a table of text."""
    columns = ("METHOD", "ANSWER", "TASK", "HAYSTACK", "LENGTH", "ASKED")
    header = (*columns, *(name.upper() for name in METRICS))
    rows = [_cells(line) for line in lines]
    return formatting.table(header, rows, right=range(4, len(header)))


def fidelity_table(reports: Sequence[dict[str, Any]]) -> str:
    """How near each method comes to dense attention, then the same layer by layer."""
    header = ("METHOD", "TOKENS", "PPL", "PPL RATIO", "KL", "TOP 1", "MASS", "TOP KEYS")
    rows = []
    for report in reports:
        for which in ("all", "sparse", "answering"):
            part = report[which]
            ends = (part["perplexity"], part["ratio"], part["kl"], part["top_1"])
            held = (report["mass"], report["top_keys"]) if which == "sparse" else (None, None)
            numbers = [shown_number(value, 4) for value in (*ends, *held)]
            label = f"{report['method']}, {which}"
            rows.append((label, formatting.count(part["tokens"]), *numbers))
    text = formatting.table(header, rows, right=range(1, len(header)))
    names = [report["method"] for report in reports if report["layers"]]
    layers = [report["layers"] for report in reports if report["layers"]]
    if not names:
        return text
    columns = ("LAYER", *(f"{name} {part}" for name in names for part in ("MASS", "TOP KEYS")))
    per_layer = []
    for number in range(max(map(len, layers))):
        # A method that is sparse somewhere is sparse in all layers.
        cells = [row[number] for row in layers]
        shares = [shown_number(cell[part], 4) for cell in cells for part in ("mass", "top_keys")]
        per_layer.append((str(cells[0]["layer"]), *shares))
    return f"{text}\n{formatting.table(columns, per_layer, right=range(len(columns)))}"


def _cells(line: Line) -> tuple[str, ...]:
    means = tuple(_metric(name, line.means[name]) for name in METRICS)
    if line.error:
        means = ("does not fit", *means[1:])
    where = (line.task, line.haystack, length_name(line.length), str(line.asked))
    return (line.method, line.answer, *where, *means)


def _metric(name: str, value: float | None) -> str:
    digits = {"read_tokens": 0, "seconds": 1}.get(name, 3)
    return shown_number(value, digits)


def shown_number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def draw(console: Console, grids: Sequence[Grid]) -> None:
    """Grids of more than one cell as coloured tables on stderr, which must be a terminal."""
    from rich.table import Table
    from rich.text import Text

    terminal = on_stderr(console)
    for grid in _worth_showing(grids):
        shown = Table(title=Text(formatting.one_line(grid.title)), title_justify="left")
        shown.add_column("depth", justify="right")
        for length in grid.lengths:
            shown.add_column(length_name(length), justify="right")
        for depth in grid.depths:
            values = [grid.values.get((depth, length)) for length in grid.lengths]
            cells = [
                Text(shown_number(value, 2), style="" if value is None else _rich_style(value))
                for value in values
            ]
            shown.add_row(depth_name(depth), *cells)
        terminal.print(shown)


def rgb(value: float) -> tuple[int, int, int]:
    """Red for 0, yellow for a half, green for 1, pale enough for black letters."""
    low, high = 110, 235
    red = high if value < 0.5 else high - (high - low) * (value - 0.5) * 2
    green = high if value > 0.5 else low + (high - low) * value * 2
    return round(red), round(green), low


def _rich_style(value: float) -> str:
    return f"black on rgb({','.join(map(str, rgb(value)))})"


def page(model: dict[str, Any], lines: Sequence[Line], grids: Sequence[Grid]) -> str:
    """A page of HTML that needs nothing else: heat maps, then the table of means."""
    about = ", ".join(f"{name} {value}" for name, value in model.items() if value)
    parts = [
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>",
        f"<title>hip eval</title><style>{_STYLE}</style></head><body>",
        f"<h1>hip eval</h1><p>{html.escape(about)}. RULER-style tasks, generated.</p>",
        *(_html_grid(grid) for grid in grids),
        _html_table(lines),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _html_grid(grid: Grid) -> str:
    head = "".join(f"<th>{length_name(length)}</th>" for length in grid.lengths)
    rows = []
    for depth in grid.depths:
        cells = []
        for length in grid.lengths:
            value = grid.values.get((depth, length))
            colour = "" if value is None else f" style='background: rgb{rgb(value)}'"
            cells.append(f"<td{colour}>{shown_number(value, 2)}</td>")
        rows.append(f"<tr><th>{depth_name(depth)}</th>{''.join(cells)}</tr>")
    caption = html.escape(grid.title)
    body = "\n".join(rows)
    return f"<table><caption>{caption}</caption><tr><th>depth</th>{head}</tr>\n{body}</table>"


def _html_table(lines: Sequence[Line]) -> str:
    names = ("method", "answer", "task", "haystack", "length", "asked", *METRICS)
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    rows = []
    for line in lines:
        cells = _cells(line)
        row = "".join(f"<td class='name'>{html.escape(cell)}</td>" for cell in cells[:4])
        row += "".join(f"<td>{html.escape(cell)}</td>" for cell in cells[4:])
        rows.append(f"<tr>{row}</tr>")
    body = "\n".join(rows)
    return f"<table><caption>Means</caption><tr>{head}</tr>\n{body}</table>"
