"""How to read: every default of the document flags exists here, once."""

import codecs
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hipcli.engine.errors import UsageError

if TYPE_CHECKING:
    from hipcli.documents.spool import Spool

# Codecs that Python calls text encodings, though no file is written in them; some of them take
# quadratic time.
_NOT_CHARSETS = {"idna", "punycode", "undefined", "unicode-escape", "raw-unicode-escape", "mbcs"}


@dataclass(frozen=True, slots=True)
class PdfLimits:
    """What one PDF may cost before its child process is ended.

    Args:
        page_s: seconds without a new page.
        total_s: seconds for the whole file.
        memory_bytes: address space of the child, on top of three times the size of the file.
        text_bytes: bytes the child may send back, and half of it for one page.
        restarts: how often reading goes on behind a page that ended the child.
    """

    page_s: float = 30.0
    total_s: float = 900.0
    memory_bytes: int = 2 << 30
    text_bytes: int = 1 << 30
    restarts: int = 3

    def __post_init__(self) -> None:
        for name in ("page_s", "total_s", "memory_bytes", "text_bytes"):
            if getattr(self, name) <= 0:
                raise UsageError(f"{name} must be positive, not {getattr(self, name)}")
        if self.restarts < 0:
            raise UsageError(f"restarts must not be negative, not {self.restarts}")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What to read of the sources, and how.

    Args:
        include: patterns as in .gitignore; if any, files of folders must match one.
        exclude: patterns as in .gitignore; files of folders that match one are left out.
        hidden: also read files of folders whose path has a part that starts with a dot.
        gitignore: leave out of folders what git ignores.
        max_file_bytes: larger files of folders are skipped; a file named on the command line is
            read whatever its size.
        max_files: folders with more files to read are refused, before any is read.
        max_total_bytes: the same for their sizes together.
        encoding: for text that has no byte order mark and is not plainly UTF-8; None guesses.
        password: for encrypted PDFs; never shown, logged or stored.
        strict: partial input is an error.
        stdin: what is behind the source `-`.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    hidden: bool = False
    gitignore: bool = True
    max_file_bytes: int = 16 << 20
    max_files: int = 50_000
    max_total_bytes: int = 4 << 30
    encoding: str | None = None
    password: str | None = field(default=None, repr=False)
    strict: bool = False
    stdin: "bytes | Spool | None" = field(default=None, repr=False)
    pdf_limits: PdfLimits = PdfLimits()

    def __post_init__(self) -> None:
        for name in ("max_file_bytes", "max_files", "max_total_bytes"):
            if getattr(self, name) <= 0:
                raise UsageError(f"{name} must be positive, not {getattr(self, name)}")
        if self.encoding is not None:
            check_encoding(self.encoding)


def check_encoding(encoding: str) -> str:
    """Python's name of a character encoding.

    Raises:
        UsageError: it is unknown, or no encoding of text (base64, rot13, ...).
    """
    try:
        name = codecs.lookup(encoding).name
        # Python tells codecs that turn bytes into bytes (base64) only when they are used.
        b"x".decode(name, "replace")
    except UnicodeError:
        # Half a character: an encoding of text all right.
        pass
    except (LookupError, ValueError) as error:
        raise UsageError(
            f"unknown text encoding {encoding!r}",
            "Give a name such as utf-8, cp1252, shift_jis or utf-16-le.",
        ) from error
    if name in _NOT_CHARSETS:
        raise UsageError(f"{encoding!r} is not an encoding that text files are written in")
    return name


def encoding_name(encoding: str) -> str | None:
    """Python's name of a character encoding, None when it is none."""
    try:
        return check_encoding(encoding)
    except UsageError:
        return None
