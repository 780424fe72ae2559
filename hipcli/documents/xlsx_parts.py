"""Excel files: a part for each sheet, its label the sheet's name, a line for each row."""

import io
from collections.abc import Iterator
from datetime import date, datetime, time
from itertools import zip_longest
from typing import Any


def parts(data: bytes) -> Iterator[tuple[str, str]]:
    """Name and rows of each sheet, in order; values, or the formula where none was saved."""
    values, formulas = _open(data, True), _open(data, False)
    for name in values.sheetnames:
        sheet, other = values[name], formulas[name]
        # A sheet that is one chart has no rows.
        if not hasattr(sheet, "iter_rows"):
            continue
        hidden = "" if sheet.sheet_state == "visible" else " (hidden)"
        yield name + hidden, "\n".join(_lines(sheet, other))


def _open(data: bytes, values: bool) -> Any:
    import openpyxl

    return openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=values)


def _lines(sheet: Any, formulas: Any) -> Iterator[str]:
    for each in (sheet, formulas):
        # The size that a file claims can be all of Excel's million rows.
        each.reset_dimensions()
    rows = zip_longest(sheet.iter_rows(values_only=True), formulas.iter_rows(values_only=True))
    for row, written in rows:
        cells = [
            _shown(formula if value is None else value)
            for value, formula in zip_longest(row or (), written or ())
        ]
        while cells and not cells[-1]:
            cells.pop()
        if cells:
            yield " | ".join(cells)


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, datetime):
        return value.isoformat(" ").removesuffix(" 00:00:00")
    if isinstance(value, date | time):
        return value.isoformat()
    return " ".join(str(value).split())
