"""Damage in a PDF that parsers pass over without a word: a missing end, streams that don't unpack.

A parser shows what it can of a broken page, and the rest of its text is gone. Runs in the child
process only, before the pages are read.
"""

import base64
import re
import zlib
from collections.abc import Iterator

_STREAM = re.compile(rb">>\s{0,4}stream\r?\n")
# Flate alone, or in an ASCII coat.
_FLATE = re.compile(rb"/Filter\s*(?:\[\s*)?(/ASCII85Decode\s*)?/FlateDecode\s*(?:\]|/|>|$)")
# Pictures and fonts hold no text of their own.
_NO_TEXT = re.compile(rb"/Subtype\s*/Image|/Length1|/Type1C|/CIDFontType0C|/OpenType")
_MAX_DICTIONARY_BYTES = 2000
# Packed; a thousand times as much can come of it.
_PIECE_BYTES = 1 << 15
# Of one stream; more is a bomb, which the parser's own limits meet.
_MAX_STREAM_BYTES = 1 << 27
_MAX_TOTAL_BYTES = 1 << 30


def damage(data: bytes) -> list[tuple[str, str]]:
    """(code, message) of each kind of damage."""
    found = []
    end = data.rfind(b"%%EOF")
    # Behind the end of a newer version that was cut off too, there are objects again.
    if end < 0 or b" obj" in data[end:]:
        found.append(("pdf_cut_off", "the end of the file is missing, and perhaps pages with it"))
    # What is encrypted would have to be decrypted first.
    broken = 0 if b"/Encrypt" in data else sum(not is_whole for is_whole in _streams(data))
    if broken:
        streams = "1 part of the file is" if broken == 1 else f"{broken:,} parts of the file are"
        what = f"{streams} damaged: text may be missing or wrong"
        found.append(("pdf_damaged_streams", what))
    return found


def _streams(data: bytes) -> Iterator[bool]:
    """Whether each packed stream that may hold text unpacks to its end."""
    left, at = _MAX_TOTAL_BYTES, 0
    while left > 0 and (match := _STREAM.search(data, at)):
        low = max(0, match.start() - _MAX_DICTIONARY_BYTES)
        start = data.rfind(b" obj", low, match.start())
        dictionary = data[max(low, start) : match.start() + 2]
        end = data.find(b"endstream", match.end())
        # What is in a stream is no object, so looking goes on behind it.
        at = end if end >= 0 else len(data)
        coat = _FLATE.search(dictionary)
        if coat is None or _NO_TEXT.search(dictionary):
            continue
        packed: bytes | memoryview = memoryview(data)[match.end() : at]
        if coat[1]:
            try:
                packed = base64.a85decode(bytes(packed).strip().removesuffix(b"~>"))
            except ValueError:
                yield False
                continue
        whole, num_bytes = _unpacks(packed)
        left -= num_bytes
        yield whole


def _unpacks(packed: bytes | memoryview) -> tuple[bool, int]:
    """Whether a stream unpacks to its end, and how much was unpacked to see it."""
    unpacker, num_bytes = zlib.decompressobj(), 0
    try:
        for at in range(0, len(packed), _PIECE_BYTES):
            num_bytes += len(unpacker.decompress(packed[at : at + _PIECE_BYTES]))
            if unpacker.eof or num_bytes >= _MAX_STREAM_BYTES:
                return True, num_bytes
        # Some programs leave out the checksum at the end; the data before it ends by itself.
        bare = zlib.decompressobj(-zlib.MAX_WBITS)
        bare.decompress(packed[2:])
    except zlib.error:
        return False, num_bytes
    # Two bytes are the end of a line.
    return bare.eof or len(packed) <= 2, num_bytes
