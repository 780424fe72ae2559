"""Text files: encodings, newlines, and that nothing but `Refusal` ever comes out."""

import codecs
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hipcli.documents import text_reader
from hipcli.documents.content import Content, Hints
from hipcli.documents.decode import drop_surrogates, normalize_newlines
from hipcli.documents.options import ReadOptions
from hipcli.documents.refusal import Refusal
from hipcli.engine.errors import UsageError

QUOTES = "He said \u201cit\u2019s fine\u201d \u2013 and left\u2026 for 5\u20ac."
JAPANESE = "これは日本語の文章です。漢字とかなが混ざっています。\n二行目もあります。\n"
# What each language looks like, and the encoding its files had before Unicode.
LEGACY = [
    (QUOTES, "cp1252"),
    ("Le café était fermé à Noël, où êtes-vous allés? Garçon!", "latin-1"),
    ("Die Straße ist für Übergänge groß genug; möglicherweise.", "cp1252"),
    ("plain words " * 500 + "café", "cp1252"),
    (JAPANESE, "shift_jis"),
    ("日本語", "shift_jis"),
    (JAPANESE, "euc_jp"),
    (JAPANESE, "iso2022_jp"),
    ("这是一个中文文本文件,用来测试编码检测。第二句话也在这里。", "gbk"),
    ("這是一個中文文字檔案,用來測試編碼偵測。第二句話也在這裡。", "big5"),
    ("이것은 한국어 텍스트 파일입니다. 인코딩 감지를 시험합니다.", "euc_kr"),
    ("Это русский текст для проверки кодировки. Вторая строка тоже здесь.", "cp1251"),
    ("Это русский текст для проверки кодировки. Вторая строка тоже здесь.", "koi8_r"),
    ("Это русский текст для проверки кодировки. Вторая строка тоже здесь.", "cp866"),
    ("Zażółć gęślą jaźń. Pójdź, kińże tę chmurność w głąb flaszy!", "cp1250"),
    ("Příliš žluťoučký kůň úpěl ďábelské ódy.", "iso8859_2"),
    ("Bu dosya Türkçe yazılmıştır, şüphesiz çalışıyor. İğne", "cp1254"),
    ("Αυτό είναι ένα ελληνικό κείμενο για έλεγχο κωδικοποίησης.", "cp1253"),
    ("זהו טקסט בעברית לבדיקת הקידוד של הקובץ.", "cp1255"),
    ("هذا نص عربي لاختبار ترميز الملف.", "cp1256"),
    ("นี่คือข้อความภาษาไทยสำหรับทดสอบ", "cp874"),
    ("╔══╗\n║ok║\n╚══╝ café", "cp437"),
]


def read(data: bytes, encoding: str | None = None) -> Content:
    return text_reader.read(data, Hints(encoding=encoding))


@pytest.mark.parametrize(("text", "encoding"), LEGACY, ids=lambda value: value[:12])
def test_legacy_encodings_are_recognised(text: str, encoding: str) -> None:
    content = read(text.encode(encoding))
    assert content.text == text
    assert not content.partial
    # And read when they are named.
    assert read(text.encode(encoding), encoding).text == text


def test_utf8_is_checked_to_the_end() -> None:
    content = read(b"a" * 5000 + "café".encode())
    assert (content.text[-4:], content.encoding) == ("café", "utf-8")


@pytest.mark.parametrize(
    ("mark", "encoding"),
    [
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
        (codecs.BOM_UTF32_LE, "utf-32-le"),
        (codecs.BOM_UTF32_BE, "utf-32-be"),
    ],
)
@pytest.mark.parametrize("text", ["one\ntwo\n", "café\n", JAPANESE, "\U0001f600 smile"])
def test_marks_decide_and_never_reach_the_text(mark: bytes, encoding: str, text: str) -> None:
    for data in (mark + text.encode(encoding), mark + mark + text.encode(encoding)):
        content = read(data, "cp1252")
        assert (content.text, content.encoding, content.partial) == (text, encoding, False)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("text", ["key = value\n" * 9, "Das Maß\n", JAPANESE, "Привет, мир\n"])
def test_wide_encodings_without_a_mark(encoding: str, text: str) -> None:
    content = read(text.encode(encoding))
    assert (content.text, content.encoding) == (text, encoding)


def test_the_users_word_beats_a_guess_and_yields_to_certainty() -> None:
    data = "Größe".encode("cp1252")
    assert read(data, "mac_roman").text == data.decode("mac_roman")
    assert read("Größe".encode(), "cp1252").text == "Größe"
    # Pure ASCII can be an encoding in disguise.
    assert read(b"Gr+APYA3w-e", "utf-7").text == "Größe"


def test_a_lone_bad_byte_far_in_costs_one_character() -> None:
    data = "naïve text – with accents\n".encode() * 400_000
    at = len(data) // 2
    start = time.monotonic()
    content = read(data[:at] + b"\xff" + data[at:])
    assert time.monotonic() - start < 5
    assert content.text.count("\ufffd") == 1
    assert (content.encoding, content.partial) == ("utf-8", True)
    assert content.warnings[0][0] == "undecodable_bytes"
    assert "line 200,001" in content.warnings[0][1]
    ascii_only = read(b"x\n" * 1_000_000 + b" \xff \n")
    assert (ascii_only.encoding, ascii_only.partial) == ("utf-8", True)


def test_own_replacement_characters_are_no_damage() -> None:
    content = read("a \ufffd b".encode() * 3)
    assert not content.partial
    damaged = read(("é\ufffd" * 50).encode() + b"\xff")
    assert "1 place " in damaged.warnings[0][1]


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_newlines_keep_their_number(ending: str) -> None:
    lines = ["one", "", "three", "  four"]
    text = read(ending.join(lines).encode()).text
    assert text == "\n".join(lines)


def test_only_newlines_end_lines() -> None:
    text = "a\x0bb\x0cc\x85d\u2028e\n"
    assert read(text.encode()).text == text


@pytest.mark.parametrize(
    "data",
    [
        b"a\0b",
        b"\x89PNG\r\n\x1a\n\0\0",
        bytes(range(256)) * 40,
        b"\x01\x00\x02\x00\x03\x00" * 100,
        bytes((i * 7919 >> 3) % 251 + 1 for i in range(9000)),
    ],
)
def test_binary_data_is_refused(data: bytes) -> None:
    for encoding in (None, "cp1252"):
        if encoding and b"\0" not in data:
            continue
        with pytest.raises(Refusal) as caught:
            read(data, encoding)
        assert (caught.value.code, caught.value.status) == ("binary", "skipped")


def test_one_stray_nul_far_in_is_still_text() -> None:
    data = b"log line\n" * 2000 + b"\0" + b"log line\n" * 2000
    assert read(data).text == data.decode()


@pytest.mark.parametrize("data", [b" ", b"\n\n\t \r\n", b"\xef\xbb\xbf", "\u3000\n".encode()])
def test_white_space_is_refused(data: bytes) -> None:
    with pytest.raises(Refusal, match="white space"):
        read(data)


@pytest.mark.parametrize("name", ["base64", "rot13", "zlib", "nope", "punycode", "a\0b", ""])
def test_only_encodings_of_text_can_be_named(name: str) -> None:
    with pytest.raises(UsageError):
        ReadOptions(encoding=name)


def test_surrogates_never_get_out() -> None:
    assert drop_surrogates("a\ud83d\ude00b\ud800c\udc00") == "a\U0001f600b\ufffdc\ufffd"


@settings(max_examples=150, deadline=None)
@given(data=st.binary(max_size=400), encoding=st.sampled_from([None, "utf-16", "utf-7", "cp932"]))
@example(data=b"+AAA", encoding="utf-7")
@example(data=b"\xff\xfe\x00\xd8", encoding=None)
def test_any_bytes_give_text_or_a_refusal(data: bytes, encoding: str | None) -> None:
    try:
        content = read(data, encoding)
    except Refusal:
        return
    content.text.encode("utf-8")
    assert "\r" not in content.text
    assert not content.text.startswith("\ufeff")
    assert content.text.strip()


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=300).filter(lambda t: t.strip() and "\0" not in t))
def test_valid_utf8_is_read_exactly(text: str) -> None:
    text = text.lstrip("\ufeff")
    if not text.strip() or "\x1b" in text:
        return
    content = read(text.encode())
    assert content.text == normalize_newlines(text)
    assert not content.partial
