"""Heat maps of `hip eval` as a picture, for where no page of HTML can go. Drawn with Pillow, which
is installed only for those who ask for it."""

import importlib.util
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hipcli.engine.errors import UsageError
from hipcli.engine.evaluation.summary import Grid
from hipcli.terminal import formatting
from hipcli.terminal.heat_map import depth_name, length_name, rgb, shown_number

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw
    from PIL.ImageFont import FreeTypeFont, ImageFont

    Font = FreeTypeFont | ImageFont

# Pixels.
_LETTERS = 22
_LINE = 44
_CELL = 120
_EDGE = 32
_BLACK, _WHITE, _GREY = (34, 34, 34), (255, 255, 255), (221, 221, 221)


def check_library() -> None:
    """Refuse, before anything is measured, to draw without the library.

    Raises:
        UsageError: it is not installed.
    """
    try:
        found = importlib.util.find_spec("PIL")
    except ValueError:
        found = None
    if found is None:
        raise UsageError("--png draws with Pillow, which is missing", "pip install 'hipcli[png]'")


def png(model: Mapping[str, Any], grids: Sequence[Grid]) -> bytes:
    """All grids below one another, as a PNG.

    Args:
        model: what the picture says of the model above them.
        grids: depth by length.
    """
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(_LETTERS)
    about = ", ".join(f"{name} {value}" for name, value in model.items() if value)
    titles = [f"hip eval: {about}", *(grid.title for grid in grids)]
    widest = max(font.getlength(formatting.one_line(title)) for title in titles)
    columns = max((len(grid.lengths) for grid in grids), default=0)
    width = 2 * _EDGE + max(int(widest) + 1, (1 + columns) * _CELL)
    lines = 1 + sum(3 + len(grid.depths) for grid in grids)
    image = Image.new("RGB", (width, 2 * _EDGE + lines * _LINE), _WHITE)
    draw = ImageDraw.Draw(image)
    draw.text((_EDGE, _EDGE), formatting.one_line(titles[0]), _BLACK, font)
    top = _EDGE + 2 * _LINE
    for grid in grids:
        _draw_grid(draw, font, grid, top)
        top += (3 + len(grid.depths)) * _LINE
    data = io.BytesIO()
    image.save(data, "PNG")
    return data.getvalue()


def _draw_grid(draw: "ImageDraw", font: "Font", grid: Grid, top: int) -> None:
    """A grid with its title and the names of its rows and columns, from a line of pixels down."""
    draw.text((_EDGE, top), formatting.one_line(grid.title), _BLACK, font)
    for row, depth in enumerate((None, *grid.depths), 1):
        low = top + row * _LINE
        name = "depth" if row == 1 else depth_name(depth)
        _draw_cell(draw, font, (_EDGE, low), name, _WHITE)
        for column, length in enumerate(grid.lengths, 1):
            value = grid.values.get((depth, length))
            shown = length_name(length) if row == 1 else shown_number(value, 2)
            colour = _WHITE if row == 1 or value is None else rgb(value)
            _draw_cell(draw, font, (_EDGE + column * _CELL, low), shown, colour)


def _draw_cell(
    draw: "ImageDraw",
    font: "Font",
    corner: tuple[int, int],
    text: str,
    colour: tuple[int, int, int],
) -> None:
    left, top = corner
    right, bottom = left + _CELL, top + _LINE
    draw.rectangle((left, top, right, bottom), colour, _GREY)
    middle = left + (_CELL - font.getlength(text)) / 2, top + (_LINE - _LETTERS) / 2
    draw.text(middle, text, _BLACK, font)
