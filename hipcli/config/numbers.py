"""Numbers as a user types them, refused in words that say what was typed and what may be."""

import re
from collections.abc import Callable
from typing import Any

import typer

_WHOLE = re.compile(r"[+-]?\d+")
# Beyond this a number of tokens or a seed fits no library.
_MOST = 1 << 53


def whole(least: int | None) -> Callable[[Any], int]:
    """A parser of Typer's for whole numbers from `least` on; None for any."""

    def parse(value: Any) -> int:
        text = str(value).strip()
        if not _WHOLE.fullmatch(text):
            raise typer.BadParameter(f"{text!r} is not a whole number")
        return int(_within(int(text), least, text))

    return parse


def decimal(least: int | None) -> Callable[[Any], float]:
    """A parser of Typer's for numbers from `least` on; None for any."""

    def parse(value: Any) -> float:
        text = str(value).strip()
        try:
            number = float(text)
        except ValueError:
            raise typer.BadParameter(f"{text!r} is not a number") from None
        return _within(number, least, text)

    return parse


def _within(number: float, least: int | None, text: str) -> float:
    if least is not None and number < least:
        raise typer.BadParameter(f"{text} is too small, the least is {least}")
    if number > _MOST and number != float("inf"):
        raise typer.BadParameter(f"{text} is too large")
    return number
