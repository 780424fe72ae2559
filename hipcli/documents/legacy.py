"""Which encoding from before Unicode a text is in: scores by its common letters.

A text in the right encoding consists mostly of the common letters of some language; in a wrong one
it does not. That is the whole idea; it beats general detectors on short texts (they read the curly
quotes of Windows as central European letters). Where no score convinces, charset-normalizer, which
knows more languages, is asked.
"""

import codecs
import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _SingleByte:
    """A one-byte encoding, and the characters beyond ASCII that a language in it uses most.

    Args:
        letters: its everyday letters.
        latin: a word is mostly ASCII; otherwise no word mixes ASCII with other letters.
        signs: what else occurs: quotes and dashes, or the lines and boxes of DOS.
    """

    encoding: str
    letters: frozenset[str]
    latin: bool
    signs: frozenset[str]


@dataclass(frozen=True, slots=True)
class _DoubleByte:
    """A two-byte encoding. `pair` matches any character's bytes, `common` everyday ones.

    Args:
        needs: what no text of more than a few words lacks (kana in Japanese), or None.
    """

    encoding: str
    pair: re.Pattern[bytes]
    common: re.Pattern[bytes]
    needs: re.Pattern[bytes] | None = None


def _letters(lower: str) -> frozenset[str]:
    return frozenset(lower) | frozenset(lower.upper())


_SIGNS = frozenset("“”‘’„‚–—…•€£§©®™°«»·¿¡½¼¾²³µ×±\xa0")
_BOXES = frozenset("═║╔╗╚╝╠╣╦╩╬─│┌┐└┘├┤┬┴┼█▄▀▌▐░▒▓■")
_CYRILLIC = frozenset("оеаинтсрвлкмдпуяОЕАИНТСРВЛКМДПУЯ")
_WEST = _letters("éèêëàâäáãåæçíìîïñóòôöõøœúùûüß")
_POLISH = _letters("ąćęłńóśźż")
_CZECH = _letters("áčďéěíňóřšťúůýžľĺŕôä")
_HUNGARIAN = _letters("áéíóöőúüű")
_CROATIAN = _letters("čćđšž")
_ROMANIAN = _letters("ăâîşţ")
_TURKISH = _letters("çğıöşüâîû") | {"İ"}
_BALTIC = _letters("āčēģīķļņšūžąęėįų")
_GREEK = _letters("αοιετσνηυρκπμλςγδάέήίόύώ")
_HEBREW = frozenset("יוהלאמשתרבנכקפעדחטםןצגז")
_ARABIC = frozenset("اليمونترةبعدسفكحقجهىأصطشخ")
_THAI = frozenset("นารอกงเยลมวดทสตคบปแขพจหช่้ิีัุูใไำะ็์โ")

# Ties go to the first; more widespread encodings stand first.
_SINGLE_BYTE = (
    _SingleByte("cp1252", _WEST, True, _SIGNS),
    _SingleByte("cp1251", _CYRILLIC, False, _SIGNS),
    _SingleByte("koi8_r", _CYRILLIC, False, _BOXES),
    *(
        _SingleByte(encoding, letters, True, _SIGNS)
        for letters in (_POLISH, _CZECH, _HUNGARIAN, _CROATIAN, _ROMANIAN)
        for encoding in ("cp1250", "iso8859_2")
    ),
    _SingleByte("cp1254", _TURKISH, True, _SIGNS),
    _SingleByte("cp1257", _BALTIC, True, _SIGNS),
    _SingleByte("cp1253", _GREEK, False, _SIGNS),
    _SingleByte("cp1255", _HEBREW, False, _SIGNS),
    _SingleByte("cp1256", _ARABIC, False, _SIGNS),
    _SingleByte("cp874", _THAI, False, _SIGNS),
    _SingleByte("cp866", _CYRILLIC, False, _BOXES),
    _SingleByte("mac_roman", _WEST, True, _SIGNS),
    _SingleByte("cp437", _WEST, True, _BOXES),
    _SingleByte("cp850", _WEST, True, _BOXES),
)

# `common`: the punctuation, kana or Hangul, and first-level Han characters of each standard.
# Korean stands before Chinese: the bytes of common Hangul are also those of common Chinese, but
# Chinese text uses more than those.
_DOUBLE_BYTE = (
    _DoubleByte(
        "cp932",
        re.compile(rb"[\x81-\x9f\xe0-\xfc][\x40-\x7e\x80-\xfc]|[\xa1-\xdf]"),
        re.compile(rb"\x81[\x41-\x5b\x69-\x7a]|\x82[\x4f-\xf1]|\x83[\x40-\x96]|[\x88-\x97]."),
    ),
    _DoubleByte(
        "cp949",
        re.compile(rb"[\x81-\xfe][\x41-\xfe]"),
        re.compile(rb"[\xa1\xa3\xb0-\xc8][\xa1-\xfe]"),
    ),
    _DoubleByte(
        "gb18030",
        re.compile(rb"[\x81-\xfe](?:[\x40-\x7e\x80-\xfe]|[0-9][\x81-\xfe][0-9])"),
        re.compile(rb"[\xa1\xa3\xb0-\xd7][\xa1-\xfe]"),
    ),
    _DoubleByte(
        "big5hkscs",
        re.compile(rb"[\x81-\xfe][\x40-\x7e\xa1-\xfe]"),
        re.compile(rb"[\xa1\xa4-\xc6][\x40-\x7e\xa1-\xfe]"),
    ),
    _DoubleByte(
        "euc_jp",
        re.compile(rb"\x8f..|[\x8e\xa1-\xfe][\xa1-\xfe]"),
        re.compile(rb"[\xa1\xa3-\xa5\xb0-\xcf][\xa1-\xfe]"),
        needs=re.compile(rb"[\xa4\xa5][\xa1-\xf6]"),
    ),
)
_BEYOND_ASCII_PAIR = re.compile(r"[^\x00-\x7f]{2}")
_WORD = re.compile(r"[^\W\d_]+")


def guess_legacy(sample: bytes, sure: bool) -> str | None:
    """The likeliest encoding of a text that is no UTF-8, or None.

    Args:
        sample: bytes of the text that start on a character and may end within one; at least one
            is not ASCII.
        sure: only a convincing guess is wanted.
    """
    scores = [(_score_double(sample, table), table.encoding) for table in _DOUBLE_BYTE]
    scores += [(_score_single(sample, table), table.encoding) for table in _SINGLE_BYTE]
    # max keeps the first of equals.
    best, encoding = max(scores, key=lambda pair: pair[0])
    if best >= 0.75:
        return encoding
    if sure:
        return None
    # Rarely needed, and slow to import.
    from charset_normalizer import from_bytes

    match = from_bytes(sample).best()
    if match is not None and match.encoding not in ("ascii", "utf_8"):
        return match.encoding
    return encoding if best >= 0.5 else None


def _decode_sample(sample: bytes, encoding: str) -> str | None:
    try:
        return codecs.getincrementaldecoder(encoding)().decode(sample)
    except UnicodeDecodeError:
        return None


def _score_single(sample: bytes, table: _SingleByte) -> float:
    """Share of characters beyond ASCII that speak for an encoding, less what speaks against."""
    text = _decode_sample(sample, table.encoding)
    # Letters that only stand alone prove nothing: any stray byte is one in some alphabet.
    if text is None or not (table.latin or _BEYOND_ASCII_PAIR.search(text)):
        return 0.0
    beyond = sum(c > "\x7f" for c in text)
    good = float(sum(c in table.signs or c in table.letters for c in text))
    for word in _WORD.findall(text):
        num_beyond = sum(c > "\x7f" for c in word)
        if not num_beyond:
            continue
        # "Straße" is a word; "Ýòî" is Russian and "cafй" French in a wrong encoding.
        fits = 2 * num_beyond <= len(word) + 1 if table.latin else num_beyond == len(word)
        if not fits:
            good -= 2 * num_beyond
        elif word.lower() != word.upper() and not (
            word.islower() or word.isupper() or word.istitle()
        ):
            good -= num_beyond / 2
    return good / max(1, beyond)


def _score_double(sample: bytes, table: _DoubleByte) -> float:
    """Share of the two-byte characters that are everyday ones."""
    if _decode_sample(sample, table.encoding) is None:
        return 0.0
    pairs = table.pair.findall(sample)
    common = sum(table.common.match(pair) is not None for pair in pairs)
    lacking = table.needs is not None and not table.needs.search(sample)
    return common / max(1, len(pairs)) * (0.5 if lacking else 1.0)
