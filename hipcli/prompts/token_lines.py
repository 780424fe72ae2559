"""Which line of a text each of its tokens stands on."""

import numpy as np

# A text is looked at in stretches, so that memory does not grow with its length.
_STRETCH_CHARS = 1 << 18
# White space as Python's str.isspace has it; the last entry stands for all characters beyond.
_IS_SPACE = np.zeros(0x3002, dtype=bool)
_IS_SPACE[[*range(9, 14), *range(28, 33), 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B)]] = True
_IS_SPACE[[0x2028, 0x2029, 0x202F, 0x205F, 0x3000]] = True


def token_lines(text: str, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lines of the first visible character from each token on, and of the last up to its end.

    Args:
        text: without surrogates; newlines are "\\n".
        offsets: [N, 2] characters [start, end) of each token, in order.

    Returns:
        Two int32 [N] arrays of 1-based lines.
    """
    starts, ends = offsets[:, 0].copy(), offsets[:, 1].copy()
    # A token can be a part of a character: it is first seen with the token that starts it and
    # complete with the one that ends it.
    split = starts[1:] < ends[:-1]
    starts[1:] += split
    ends[:-1] -= split
    first, last = np.ones(len(starts), np.int32), np.ones(len(starts), np.int32)
    # Tokens before these two have their first and last line already.
    started = ended = 0
    line, last_line = 1, 0
    for at in range(0, len(text), _STRETCH_CHARS):
        codes = np.frombuffer(text[at : at + _STRETCH_CHARS].encode("utf-32-le"), dtype="<u4")
        newlines = np.flatnonzero(codes == 10)
        visible = np.flatnonzero(~_IS_SPACE[np.minimum(codes, len(_IS_SPACE) - 1)])
        ending = int(np.searchsorted(ends, at + len(codes), "right"))
        if len(visible):
            lines = line + np.searchsorted(newlines, visible)
            if not last_line:
                # Tokens of white space at the very start belong to what comes behind them.
                last[:ended], last_line = lines[0], int(lines[0])
            starting = int(np.searchsorted(starts, at + visible[-1], "right"))
            first[started:starting] = lines[np.searchsorted(visible, starts[started:starting] - at)]
            before = np.searchsorted(visible, ends[ended:ending] - at)
            last[ended:ending] = np.where(before > 0, lines[before - 1], last_line)
            started, last_line = starting, int(lines[-1])
        else:
            last[ended:ending] = last_line or 1
        ended = ending
        line += len(newlines)
    first[started:] = last_line or 1
    return first, last
