"""What an input is, by its first bytes and then its name."""

import re
from pathlib import PurePath

from hipcli.documents.refusal import Refusal

# Names for binary formats by their first bytes. Those spelt in letters count only where there are
# NUL bytes too: a text may begin with "GGUF" or "OTTO".
_MAGIC = (
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"RIFF", "a RIFF file (image, sound or video)"),
    (b"II*\x00", "a TIFF image"),
    (b"MM\x00*", "a TIFF image"),
    (b"\x7fELF", "an ELF program"),
    (b"MZ\x90", "a Windows program"),
    (b"\xca\xfe\xba\xbe", "compiled Java or a Mach-O program"),
    (b"\xcf\xfa\xed\xfe", "a Mach-O program"),
    (b"\x00asm", "a WebAssembly program"),
    (b"SQLite format 3\x00", "an SQLite database"),
    (b"OggS", "an Ogg file"),
    (b"ID3", "an MP3 file"),
    (b"fLaC", "a FLAC file"),
    (b"AT&TFORM", "a DjVu file"),
    (b"wOFF", "a font"),
    (b"wOF2", "a font"),
    (b"OTTO", "a font"),
    (b"PAR1", "a Parquet file"),
    (b"GGUF", "a GGUF model"),
    (b"\x93NUMPY", "a NumPy array"),
)
_READABLE = {
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".docx": "docx",
    ".pptx": "pptx",
    ".xlsx": "xlsx",
    ".xlsm": "xlsx",
    ".epub": "epub",
}
# Formats hip does not read: suffix -> (kind, name for the user).
_UNSUPPORTED = {
    ".mhtml": ("html", "MHTML"),
    ".docm": ("docx", "Word with macros (DOCM)"),
    ".doc": ("doc", "Word (DOC)"),
    ".odt": ("odt", "OpenDocument"),
    ".rtf": ("rtf", "RTF"),
    ".ppt": ("ppt", "PowerPoint (PPT)"),
    ".xls": ("xls", "Excel (XLS)"),
}
# Archives by what stands at their start or, for tar, behind it.
_ARCHIVES = (
    (b"\x1f\x8b", 0, "a gzip archive"),
    (b"BZh", 0, "a bzip2 archive"),
    (b"\xfd7zXZ\x00", 0, "an xz archive"),
    (b"\x28\xb5\x2f\xfd", 0, "a zstd archive"),
    (b"7z\xbc\xaf", 0, "a 7-Zip archive"),
    (b"Rar!\x1a", 0, "a RAR archive"),
    (b"ustar", 257, "a tar archive"),
)
_MARKDOWN = {".md", ".markdown", ".mdown", ".mkd", ".mdx", ".rmd", ".qmd"}
_CODE = re.compile(
    r"\.(?:asm|awk|bash|bat|c|cc|clj|cljs|cmake|cpp|cs|css|cu|cuh|cxx|d|dart|el|elm|erl|ex|exs"
    r"|f|f90|fish|fs|go|gradle|groovy|h|hh|hpp|hs|hxx|java|jl|js|jsx|kt|kts|less|lisp|lua|m"
    r"|mjs|cjs|ml|mli|mm|nim|nix|pas|php|pl|pm|proto|ps1|pxd|py|pyi|pyx|r|rb|rkt|rs|s|sass"
    r"|scala|scm|scss|sh|sol|sql|svelte|swift|tcl|tf|ts|tsx|v|vb|vhd|vhdl|vue|zig|zsh"
    r")"
)
_CODE_NAMES = {"makefile", "dockerfile", "cmakelists.txt", "rakefile", "gemfile", "justfile"}
_HTML = re.compile(rb"\s*(?:<\?xml[^>]*>\s*)?<(?:!doctype\s+html|html|head|body)\b", re.IGNORECASE)
_HTML_COMMENT = re.compile(rb"<!--.*?-->", re.DOTALL)
_LFS = b"version https://git-lfs.github.com/spec/"
_NOT_YET = "Convert it to text or PDF first."


def kind_of(name: str, data: bytes) -> str:
    """The kind of an input that hip reads: "pdf", "notebook", "html", "docx", ..., "text".

    Args:
        name: the file's name, "stdin" for standard input; only its last part counts.
        data: all of its bytes.

    Raises:
        Refusal: it is empty, a Git LFS pointer, or of a format that is not read.
    """
    suffix = PurePath(name).suffix.lower()
    if not data:
        raise Refusal("empty", "empty file (0 bytes)", status="skipped")
    if data.startswith(_LFS):
        raise Refusal(
            "lfs_pointer",
            "a Git LFS pointer, not the file itself",
            "Fetch the file with `git lfs pull`.",
            status="skipped",
        )
    if _is_pdf(data, suffix):
        return "pdf"
    if suffix == ".pdf":
        _refuse_false_pdf(data)
    _refuse_unsupported(data, suffix)
    if data.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _zip_kind(data)
    if suffix in _READABLE:
        return _READABLE[suffix]
    if _is_html(data, suffix):
        return "html"
    if suffix == ".ipynb" or _is_notebook(name, data):
        return "notebook"
    if suffix in _MARKDOWN:
        return "markdown"
    if (
        _CODE.fullmatch(suffix)
        or PurePath(name).name.lower() in _CODE_NAMES
        or data.startswith(b"#!")
    ):
        return "code"
    return "text"


def _is_pdf(data: bytes, suffix: str) -> bool:
    # Viewers accept junk before the header; a text that merely speaks of %PDF- must stay text.
    return data.startswith(b"%PDF-") or (suffix == ".pdf" and b"%PDF-" in data[:1024])


def _is_notebook(name: str, data: bytes) -> bool:
    return name == "stdin" and data.lstrip()[:1] == b"{" and b'"nbformat"' in data


def _refuse_false_pdf(data: bytes) -> None:
    """Say what a file is that is called .pdf and is none."""
    if _starts_as_html(data):
        raise Refusal(
            "html_as_pdf",
            "a web page (HTML) saved under the name of a PDF",
            "Download the PDF itself; a link to it often leads to a log-in or viewer page.",
            kind="html",
        )
    if not data.strip(b"\0 \t\r\n"):
        raise Refusal("pdf_damaged", "not a PDF: it holds nothing but zeros or blanks")
    raise Refusal("pdf_damaged", "not a PDF: the header %PDF- is missing")


def _refuse_unsupported(data: bytes, suffix: str) -> None:
    if suffix in _UNSUPPORTED:
        kind, title = _UNSUPPORTED[suffix]
        raise Refusal(
            "not_supported", f"{title} is not supported", _NOT_YET, status="skipped", kind=kind
        )
    for magic, at, title in _ARCHIVES:
        # Three letters are no archive; three letters and NUL bytes are.
        if data.startswith(magic, at) and (not magic.isascii() or b"\0" in data[:4096]):
            raise _archive(title)
    if data.startswith(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"):
        raise Refusal(
            "not_supported",
            "an old Office file (DOC, XLS, PPT), or one with a password, is not supported",
            "Save it as DOCX, XLSX, PPTX or PDF, without a password.",
            status="skipped",
            kind="office",
        )
    for magic, title in _MAGIC:
        if data.startswith(magic) and (not magic.isascii() or b"\0" in data[:4096]):
            raise Refusal("binary", f"binary data ({title})", status="skipped", kind="binary")


def _zip_kind(data: bytes) -> str:
    """Kind of a ZIP container, by the names of its members.

    Raises:
        Refusal: it is an archive, or of a format that is not read.
    """
    head = data[:8192]
    if b"mimetypeapplication/epub+zip" in head:
        return "epub"
    if b"mimetypeapplication/vnd.oasis.opendocument" in head:
        raise Refusal(
            "not_supported", "OpenDocument is not supported", _NOT_YET, status="skipped", kind="odt"
        )
    # Each has this beside its own folder; an archive may hold a folder called "word" too.
    if b"[Content_Types].xml" in data:
        for folder, kind in ((b"word/", "docx"), (b"ppt/", "pptx"), (b"xl/", "xlsx")):
            if folder in data:
                return kind
    raise _archive("a ZIP archive")


def _archive(title: str) -> Refusal:
    return Refusal(
        "archive",
        f"{title}: archives are not read",
        "Unpack it and name the folder.",
        status="skipped",
        kind="archive",
    )


def _is_html(data: bytes, suffix: str) -> bool:
    """HTML by name or, where the name says nothing, by its start."""
    return not suffix and _starts_as_html(data)


def _starts_as_html(data: bytes) -> bool:
    head = data[:4096].removeprefix(b"\xef\xbb\xbf")
    return _HTML.match(_HTML_COMMENT.sub(b"", head)) is not None
