"""Text, Markdown and source code: decode, and end every line in the same way."""

from hipcli.documents.content import Content, Hints
from hipcli.documents.decode import Decoded, decode, normalize_newlines
from hipcli.documents.refusal import Refusal


def read(data: bytes, hints: Hints) -> Content:
    """Read a text file. Line numbers of the text are those of the file.

    Raises:
        Refusal: binary data, or nothing but white space.
    """
    decoded = decode(data, hints.encoding)
    text = normalize_newlines(decoded.text)
    if not text or text.isspace():
        raise blank()
    return Content(
        text=text,
        encoding=decoded.encoding,
        partial=decoded.undecodable > 0,
        warnings=decoding_warnings(decoded, text),
    )


def blank() -> Refusal:
    """What to say of text in which there is nothing to read."""
    return Refusal("blank", "nothing but white space", status="skipped")


def decoding_warnings(decoded: Decoded, text: str) -> tuple[tuple[str, str], ...]:
    """What the user should know about bytes that are no text.

    Args:
        text: the decoded text as the model will read it.
    """
    if not decoded.undecodable:
        return ()
    places = "1 place" if decoded.undecodable == 1 else f"{decoded.undecodable:,} places"
    line = text.count("\n", 0, max(0, text.find("\ufffd"))) + 1
    return (
        (
            "undecodable_bytes",
            f"{places} cannot be decoded as {decoded.encoding} and read as U+FFFD (first on line"
            f" {line:,}); give --encoding if it is another encoding",
        ),
    )
