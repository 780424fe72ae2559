"""Columns that a PDF draws line by line across the page, put in the order they are read.

pdfium gives text in the order it was drawn, which mostly is the order of reading. Where the
drawing goes from column to column with every line, two texts are mixed; this file finds such pages
by their boxes. Three and more columns are two, of which one or both are columns again. Rows of a
table are drawn in the same way and must stay rows: what tells prose from a table is that its lines
fill their column.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

# Left, bottom, right, top; y grows upwards.
Box = tuple[float, float, float, float]

_MIN_LINES = 5
_MAX_BOXES = 4000
# Where between the edges of the text a gutter may run, and how many places are tried.
_GUTTER_RANGE = (0.3, 0.7)
_GUTTER_STEPS = 41
# Lines that may cross it: titles, footers, figures.
_MAX_CROSSING = 0.25
# Between columns, in heights of a line.
_MIN_GAP = 0.8
# How much of its column the usual line of prose fills.
_MIN_FILL = 0.6


def reading_order(boxes: Sequence[Box]) -> list[list[int]] | None:
    """Lines as lists of boxes, in reading order; None where the order of drawing is to be kept.

    Args:
        boxes: of pieces of text, in the order they were drawn.
    """
    if not 2 * _MIN_LINES <= len(boxes) <= _MAX_BOXES:
        return None
    gutter = _find_gutter(boxes)
    if gutter is None:
        return None
    sides = [_side(box, gutter) for box in boxes]
    in_columns = [side for side in sides if side]
    switches = sum(a != b for a, b in pairwise(in_columns))
    halves = [[at for at, side in enumerate(sides) if side == which] for which in (-1, 1)]
    left, right = (_lines(boxes, half) for half in halves)
    # Drawn one column after the other, the side changes once or, around figures, a few times.
    if min(len(left), len(right)) < _MIN_LINES or switches < min(len(left), len(right)) / 2:
        return None
    across = _lines(boxes, [at for at, side in enumerate(sides) if not side])
    # Where every word is a box of its own, few boxes cross a place, but most lines do.
    if len(across) > _MAX_CROSSING * (len(across) + max(len(left), len(right))):
        return None
    if not _is_wide(boxes, left, right):
        return None
    if not (_is_prose(boxes, left) and _is_prose(boxes, right)):
        return None
    left, right = (
        _with_columns(boxes, half, lines) for half, lines in zip(halves, (left, right), strict=True)
    )
    return _joined(boxes, left, right, across)


def _with_columns(
    boxes: Sequence[Box], chosen: Sequence[int], lines: list[list[int]]
) -> list[list[int]]:
    """The lines of one column; where it is several columns itself, those one after the other."""
    inner = reading_order([boxes[at] for at in chosen])
    return lines if inner is None else [[chosen[at] for at in line] for line in inner]


def _find_gutter(boxes: Sequence[Box]) -> float | None:
    """Where the fewest boxes are crossed, in the middle of the widest such place."""
    low, high = min(box[0] for box in boxes), max(box[2] for box in boxes)
    start, end = (low + (high - low) * share for share in _GUTTER_RANGE)
    places = [start + (end - start) * step / (_GUTTER_STEPS - 1) for step in range(_GUTTER_STEPS)]
    # Those that begin left of a place, less those that end there too.
    starts, ends = sorted(box[0] for box in boxes), sorted(box[2] for box in boxes)
    crossed = [max(0, bisect_left(starts, place) - bisect_right(ends, place)) for place in places]
    fewest = min(crossed)
    if fewest > _MAX_CROSSING * len(boxes):
        return None
    runs: list[list[float]] = [[]]
    for place, count in zip(places, crossed, strict=True):
        if count == fewest:
            runs[-1].append(place)
        elif runs[-1]:
            runs.append([])
    widest = max(runs, key=len)
    return widest[len(widest) // 2]


def _side(box: Box, gutter: float) -> int:
    """-1 left of the gutter, 1 right of it, 0 across it."""
    if box[2] <= gutter:
        return -1
    return 1 if box[0] >= gutter else 0


def _lines(boxes: Sequence[Box], chosen: Sequence[int]) -> list[list[int]]:
    """The chosen boxes as lines from top to bottom, each from left to right."""
    lines: list[list[int]] = []
    for at in sorted(chosen, key=lambda at: -boxes[at][1] - boxes[at][3]):
        last = boxes[lines[-1][0]] if lines else None
        middle = (boxes[at][1] + boxes[at][3]) / 2
        if last is not None and last[1] <= middle <= last[3]:
            lines[-1].append(at)
        else:
            lines.append([at])
    return [sorted(line, key=lambda at: boxes[at][0]) for line in lines]


def _is_wide(
    boxes: Sequence[Box], left: Sequence[Sequence[int]], right: Sequence[Sequence[int]]
) -> bool:
    """Whether the columns are further apart than the words of a line."""
    ends = sorted(max(boxes[at][2] for at in line) for line in left)
    start = median(boxes[line[0]][0] for line in right)
    # A few lines may stick out.
    return start - ends[int(0.9 * (len(ends) - 1))] >= _MIN_GAP * _height(boxes, left)


def _height(boxes: Sequence[Box], lines: Sequence[Sequence[int]]) -> float:
    return median(boxes[line[0]][3] - boxes[line[0]][1] for line in lines)


def _is_prose(boxes: Sequence[Box], lines: Sequence[Sequence[int]]) -> bool:
    """Whether the usual line fills the column that all lines together take."""
    starts = [boxes[line[0]][0] for line in lines]
    ends = [max(boxes[at][2] for at in line) for line in lines]
    width = max(ends) - min(starts)
    usual = median(end - start for start, end in zip(starts, ends, strict=True))
    # A column of numbers or single words is as wide as its widest entry, and low in width.
    return usual >= _MIN_FILL * width and width >= 10 * _height(boxes, lines)


def _joined(
    boxes: Sequence[Box],
    left: Sequence[list[int]],
    right: Sequence[list[int]],
    across: Sequence[list[int]],
) -> list[list[int]]:
    """Between two lines across the page: the left column's lines, then the right column's."""
    ordered: list[list[int]] = []
    top = float("inf")
    for line in [*across, None]:
        bottom = _middle(boxes, line) if line is not None else float("-inf")
        for column in (left, right):
            ordered += [each for each in column if bottom <= _middle(boxes, each) < top]
        if line is not None:
            ordered.append(line)
            top = bottom
    return ordered


def _middle(boxes: Sequence[Box], line: Sequence[int]) -> float:
    box = boxes[line[0]]
    return (box[1] + box[3]) / 2
