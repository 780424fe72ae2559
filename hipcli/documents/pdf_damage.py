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
_PIECE_BYTES = 1 << 20
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
        found.append(("pdf_damaged_streams", f"{streams} damaged: text may be missing"))
    return found


def _streams(data: bytes) -> Iterator[bool]:
    """Whether each packed stream that may hold text unpacks to its end."""
    left = _MAX_TOTAL_BYTES
    for match in _STREAM.finditer(data):
        low = max(0, match.start() - _MAX_DICTIONARY_BYTES)
        start = data.rfind(b" obj", low, match.start())
        dictionary = data[max(low, start) : match.start() + 2]
        coat = _FLATE.search(dictionary)
        if coat is None or _NO_TEXT.search(dictionary):
            continue
        end = data.find(b"endstream", match.end())
        packed = data[match.end() : end if end >= 0 else len(data)]
        if coat[1]:
            try:
                packed = base64.a85decode(packed.strip().removesuffix(b"~>"))
            except ValueError:
                yield False
                continue
        whole, num_bytes = _unpacks(packed)
        left -= num_bytes
        yield whole
        if left < 0:
            return


def _unpacks(packed: bytes) -> tuple[bool, int]:
    """Whether a stream unpacks to its end, and how much was unpacked to see it."""
    unpacker, num_bytes = zlib.decompressobj(), 0
    try:
        piece = unpacker.decompress(packed, _PIECE_BYTES)
        while piece and num_bytes < _MAX_STREAM_BYTES:
            num_bytes += len(piece)
            piece = unpacker.decompress(unpacker.unconsumed_tail, _PIECE_BYTES)
    except zlib.error as error:
        # All of it came out; only its checksum is wrong.
        return "incorrect data check" in str(error), num_bytes
    return unpacker.eof or num_bytes >= _MAX_STREAM_BYTES, num_bytes
