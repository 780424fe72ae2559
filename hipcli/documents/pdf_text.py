"""What to make of the text of a PDF page: is it text at all, and mending what typesetting broke."""

import re
import unicodedata
from collections import Counter

# pdfium's mark for a hyphen at the end of a line that the next line goes on from; older versions
# and one of its functions write U+0002 instead.
HYPHEN_MARK = "\ufffe"
_MENDED = str.maketrans(
    {
        "\ufb00": "ff",
        "\ufb01": "fi",
        "\ufb02": "fl",
        "\ufb03": "ffi",
        "\ufb04": "ffl",
        "\ufb05": "st",
        "\ufb06": "st",
        # Bullets of the Symbol and Wingdings fonts, which have no map to Unicode.
        **dict.fromkeys("\uf06e\uf076\uf0a7\uf0a8\uf0b7\uf0d8\uf0fc", "•"),
    }
)
# Neither readable nor white space: no tokenizer and no reader gains from them.
_UNREADABLE = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\ufffd\uffff\ue000-\uf8ff]")
_WORD = re.compile(r"\w+(?:-\w+)*")
# Left half, mark, right half with what clings to it, and the blank behind it. The bounds keep the
# search linear on a page that is one endless word.
_BROKEN_WORD = re.compile(
    rf"([\w-]{{1,64}}){HYPHEN_MARK}\n?(\w{{1,64}})([^\s\w{HYPHEN_MARK}]{{0,8}})( ?)"
)
_SCRIPT_SAMPLE = 2000


def is_garbled(text: str, unmapped: float) -> bool:
    """Whether a page's text is the codes of a font rather than letters.

    Args:
        text: as extracted.
        unmapped: share of characters for which the font has no map to Unicode, 0 to 1.
    """
    unreadable = len(_UNREADABLE.findall(text.replace("\x02", "")))
    if unreadable > 0.1 * sum(map(len, text.split())):
        return True
    return unmapped > 0.3 and not _looks_readable(text)


def _looks_readable(text: str) -> bool:
    """Whether text without a map may be right after all: one script, words, and vowels in them."""
    letters = [c for c in text if c.isalpha()][:_SCRIPT_SAMPLE]
    ink = sum(map(len, text.split()))
    if not letters or 2 * len(letters) < min(ink, _SCRIPT_SAMPLE):
        return False
    scripts = Counter(_script(c) for c in letters)
    script, count = scripts.most_common(1)[0]
    if count < 0.9 * len(letters):
        return False
    if script != "LATIN":
        return True
    plain = [c for c in letters if c.isascii()]
    vowels = sum(c in "aeiouyAEIOUY" for c in plain)
    return len(text) - ink > 0.07 * len(text) and 0.25 < vowels / max(1, len(plain)) < 0.65


def _script(letter: str) -> str:
    script = unicodedata.name(letter, "UNNAMED").split()[0]
    return "CJK" if script in ("HIRAGANA", "KATAKANA", "HANGUL", "IDEOGRAPHIC") else script


def clean_page(text: str) -> str:
    """A page's text with ligatures as letters, "\\n" newlines, and no control characters.

    Line-end hyphens become `HYPHEN_MARK`; `mend_hyphens` decides about them.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text.isascii() or "\x02" in text:
        text = text.translate(_MENDED)
        text = re.sub(r"(?<=\w)[\x02\ufffe](?=\n?\w)", HYPHEN_MARK, text)
        text = re.sub(rf"\u00ad(?:{HYPHEN_MARK}|\n(?=\w))", HYPHEN_MARK, text).replace("\u00ad", "")
    text = _UNREADABLE.sub("\ufffd", text.replace("\x0c", "\n"))
    return re.sub(r"[ \t]+\n", "\n", text).strip("\n").rstrip()


def mend_hyphens(pages: list[str]) -> list[str]:
    """Put words together that a line end broke, by how the same book spells them elsewhere.

    "infor-" "mation" becomes "information"; "well-" "known" stays "well-known" where the book has
    that word, and so does what joined would be no plain word ("Anglo-Saxon", "2019-2020"). The line
    then ends behind the mended word, so a page keeps its number of lines.

    Args:
        pages: texts from `clean_page`.
    """
    if not any(HYPHEN_MARK in page for page in pages):
        return pages
    words: Counter[str] = Counter()
    for page in pages:
        words.update(word.lower() for word in _WORD.findall(page))

    def mend(match: re.Match[str]) -> str:
        left, right, tail, blank = match.groups()
        glue = "" if _joins(left, right, words) else "-"
        return f"{left}{glue}{right}{tail}" + ("\n" if blank else "")

    # A word broken twice needs a second look; a mark between no words was a plain hyphen.
    return [
        _BROKEN_WORD.sub(mend, _BROKEN_WORD.sub(mend, page)).replace(HYPHEN_MARK, "-")
        for page in pages
    ]


def _joins(left: str, right: str, words: Counter[str]) -> bool:
    """Whether the hyphen between two halves of a word was only the typesetter's."""
    # "state-of-the-" + "art" has its hyphen already; only the last part can have been broken.
    part = left.rpartition("-")[2]
    if not part or not right:
        return False
    joined, hyphened = words[f"{part}{right}".lower()], words[f"{left}-{right}".lower()]
    if joined or hyphened:
        return joined >= hyphened
    if left != part:
        return False
    return part[-1].islower() and right[0].islower()
