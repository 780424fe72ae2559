"""What was meant by a name that there is not. A guess that is far-fetched is worse than none."""

from collections.abc import Collection

# From this length on a word may have two slips.
_LONG = 8
# Of a word that is cut short as much must be there.
_LEAST_LETTERS = 3


def nearest(word: str, known: Collection[str]) -> str | None:
    """The one of `known` that `word` most likely means; None where none is really near.

    Near is what differs by case, dashes and underscores alone, or else by a slip of the fingers (a
    letter missing, added or mistaken, two swapped), or else has words left out or cut short, if
    that fits one alone: `max-tokens` and `temp` mean `max-new-tokens` and `temperature`.
    """
    asked = _plain(word)
    names = {_plain(name): name for name in known}
    if asked in names:
        return names[asked]
    most = min(2 if len(asked) >= _LONG else 1, len(asked) - 1)
    # Of two that are as near the one that goes on where the word ends.
    slips = [(_slips(asked, plain), not plain.startswith(asked), plain) for plain in names]
    if slips and min(slips)[0] <= most:
        return names[min(slips)[2]]
    longer = [name for plain, name in names.items() if _is_cut_short(asked, plain)]
    return longer[0] if len(longer) == 1 else None


def _plain(name: str) -> str:
    return name.lower().replace("_", "-").strip("-")


def _slips(one: str, other: str) -> int:
    """How many letters to add, drop, change or swap with their neighbours until both are alike."""
    before: list[int] = []
    last = list(range(len(other) + 1))
    for row, letter in enumerate(one, 1):
        now = [row]
        for column, wanted in enumerate(other, 1):
            changed = last[column - 1] + (letter != wanted)
            now.append(min(changed, last[column] + 1, now[-1] + 1))
            swapped = one[row - 2 : row] == wanted + other[column - 2 : column - 1]
            if row > 1 and column > 1 and swapped:
                now[-1] = min(now[-1], before[column - 2] + 1)
        before, last = last, now
    return last[-1]


def _is_cut_short(asked: str, name: str) -> bool:
    """Whether the words of `asked` begin words of `name`, in their order."""
    words = iter(name.split("-"))
    return len(asked) >= _LEAST_LETTERS and all(
        any(word.startswith(begin) for word in words) for begin in asked.split("-")
    )
