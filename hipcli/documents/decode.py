"""Bytes to text: byte order mark, strict UTF-8, the user's word, UTF-16/32, then a guess.

The order matters. A mark is certain; so is UTF-8 with characters beyond ASCII in it, since text in
another encoding is practically never valid UTF-8. What is pure ASCII, or has NUL bytes, can be an
encoding in disguise (ISO-2022-JP, UTF-16), so there `--encoding` counts, as it does against every
guess. The whole file is looked at: guessing from its first kilobytes is how accents get lost.
"""

import codecs
import re
import unicodedata
from dataclasses import dataclass

from hipcli.documents.legacy import guess_legacy
from hipcli.documents.refusal import Refusal

# UTF-32 first: its little-endian mark starts with that of UTF-16.
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_WIDE = ("utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be")
_SAMPLE_BYTES = 1 << 16
# git looks for NUL in the first 8,000 bytes; so a log with one stray NUL far in is still text.
_NUL_CHARS = 8000
_ISO_2022 = re.compile(rb"\x1b\$[@B(]|\x1b\([JI]")
_CONTROLS = re.compile(rb"[\x01-\x08\x0e-\x1a\x1c-\x1f\x7f]")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Decoded:
    """Text and how it was found.

    Args:
        text: as decoded: newlines as they were, no byte order mark in front.
        encoding: Python's name.
        undecodable: how many places are U+FFFD because no character could be read there.
        guessed: nothing but statistics speaks for `encoding`.
    """

    text: str
    encoding: str
    undecodable: int = 0
    guessed: bool = False


def decode(data: bytes, encoding: str | None = None) -> Decoded:
    """Decode a whole file.

    Args:
        data: the bytes of the file.
        encoding: the user's word, None to guess.

    Raises:
        Refusal: the bytes are no text (code "binary").
    """
    for mark, name in _MARKS:
        if data.startswith(mark):
            return _decode_as(data[len(mark) :], name)
    found = _decode_utf8(data)
    if found is not None and not data.isascii() and b"\0" not in data:
        return found
    if encoding is not None:
        told = _decode_as(data, codecs.lookup(encoding).name)
        at = told.text.find("\0", 0, _NUL_CHARS)
        if at >= 0:
            raise _binary(f"NUL at character {at:,}")
        return told
    if b"\0" in data:
        return _decode_with_nul(data, found)
    if found is not None:
        return _decode_iso_2022(data) or found
    return _decode_legacy(data)


def normalize_newlines(text: str) -> str:
    """Text whose lines end in "\\n"; the number of lines before any character stays the same."""
    if "\r" not in text:
        return text
    return text.replace("\r\n", "\n").replace("\r", "\n")


def drop_surrogates(text: str) -> str:
    """Text that can be written as UTF-8: pairs of surrogates joined, lone ones U+FFFD."""
    if not _LONE_SURROGATE.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _binary(detail: str) -> Refusal:
    return Refusal("binary", f"binary data ({detail})", status="skipped", kind="binary")


def _decode_utf8(data: bytes) -> Decoded | None:
    try:
        return Decoded(data.decode("utf-8"), "utf-8")
    except UnicodeDecodeError:
        return None


def _decode_as(data: bytes, encoding: str, guessed: bool = False) -> Decoded:
    """Decode as told; what does not fit becomes U+FFFD and is counted."""
    try:
        text, undecodable = data.decode(encoding), 0
    except (UnicodeError, ValueError):
        text = _decode_replacing(data, encoding)
        # A file may hold U+FFFD of its own; those are no damage.
        undecodable = max(1, text.count("\ufffd") - _count_replacement_characters(data, encoding))
        if undecodable * 5 > len(text):
            raise _binary(f"{undecodable:,} places that are not {encoding}") from None
    return Decoded(drop_surrogates(text).lstrip("\ufeff"), encoding, undecodable, guessed)


def _decode_replacing(data: bytes, encoding: str) -> str:
    try:
        return data.decode(encoding, "replace")
    except (UnicodeError, ValueError) as error:
        # A few codecs (UTF-7, for one) raise even when told to replace.
        raise Refusal("undecodable", f"cannot be decoded as {encoding}: {error}") from error


def _count_replacement_characters(data: bytes, encoding: str) -> int:
    return data.count("\ufffd".encode(encoding)) if encoding.startswith("utf") else 0


def _decode_with_nul(data: bytes, utf8: Decoded | None) -> Decoded:
    """Text with NUL bytes: UTF-32 or UTF-16 without a mark, or else a stray NUL far in."""
    sample = data[:_SAMPLE_BYTES]
    best, encoding = max((_wide_score(sample, len(data), name), name) for name in _WIDE)
    if best > 0.9:
        return _decode_as(data, encoding, guessed=True)
    at = data.find(b"\0")
    if at >= _NUL_CHARS and utf8 is not None and data.count(b"\0") * 1000 < len(data):
        return utf8
    raise _binary(f"NUL at byte {at:,}")


def _wide_score(sample: bytes, num_bytes: int, encoding: str) -> float:
    """How much `sample` reads like text in a UTF-16 or UTF-32 encoding, 0 to 1."""
    unit = 4 if encoding.startswith("utf-32") else 2
    if num_bytes % unit:
        return 0.0
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(sample[: len(sample) // unit * unit])
    except UnicodeDecodeError:
        return 0.0
    if not text:
        return 0.0
    text = text[:8192]
    ascii_like = sum("\t" <= c <= "\r" or " " <= c <= "~" for c in text)
    # Arrays of small numbers look like wide letters, but have no spaces.
    if not ascii_like or (len(text) > 64 and not any(c.isspace() for c in text)):
        return 0.0
    strange = sum(unicodedata.category(c) in ("Cc", "Cn", "Co", "Cs") for c in text)
    strange -= sum("\t" <= c <= "\r" for c in text)
    # ASCII decides between the byte orders: Latin text read in the wrong one is all CJK.
    return (1 - 5 * strange / len(text)) * (0.95 + 0.05 * ascii_like / len(text))


def _decode_iso_2022(data: bytes) -> Decoded | None:
    """Japanese mail: pure ASCII bytes with escape sequences that switch alphabets."""
    if not _ISO_2022.search(data):
        return None
    try:
        return Decoded(data.decode("iso2022_jp_2"), "iso2022_jp", guessed=True)
    except UnicodeDecodeError:
        return None


def _decode_legacy(data: bytes) -> Decoded:
    """Neither a mark nor valid UTF-8: damaged UTF-8, or one of the encodings before it."""
    sample = _sample_of(data)
    text = sample.decode("utf-8", "replace")
    broken = text.count("\ufffd")
    sound = sum(c > "\x7f" for c in text) - broken
    # Two bytes that happen to form a UTF-8 character are rare in other encodings.
    if sound >= 2 * broken:
        return _decode_as(data, "utf-8")
    controls = len(_CONTROLS.findall(sample))
    if controls * 50 > len(sample):
        raise _binary("control characters")
    encoding = guess_legacy(sample, sure=broken * 200 < len(sample))
    if encoding is not None:
        return _decode_as(data, encoding, guessed=True)
    if broken * 200 < len(sample):
        return _decode_as(data, "utf-8")
    raise Refusal(
        "binary",
        "binary data, or text in an encoding that cannot be guessed",
        "If it is text, say in which encoding: --encoding NAME.",
        status="skipped",
        kind="binary",
    )


def _sample_of(data: bytes) -> bytes:
    """The part of `data` around its first non-ASCII byte; ASCII before it can be cut anywhere."""
    match = re.search(rb"[\x80-\xff]", data)
    assert match is not None, "pure ASCII is valid UTF-8"
    start = max(0, match.start() - 256)
    return data[start : start + _SAMPLE_BYTES]
