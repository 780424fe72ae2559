"""From what the user typed to a `Corpus`: files, folders and standard input, read in order."""

import hashlib
import os
from collections.abc import Callable, Sequence

from hipcli.documents import (
    files,
    html_reader,
    notebook_reader,
    office_reader,
    pdf_reader,
    secrets,
    skip_rules,
    text_reader,
)
from hipcli.documents.content import Content, Hints
from hipcli.documents.document import Corpus, Document, Warning_
from hipcli.documents.items import STDIN, Item, expand
from hipcli.documents.kinds import kind_of
from hipcli.documents.naming import joined, printable_name
from hipcli.documents.options import ReadOptions
from hipcli.documents.refusal import Refusal
from hipcli.engine.errors import InputError

# Called before each input with how many were read, how many there are, and the next one's name.
Progress = Callable[[int, int, str], None]

READERS: dict[str, Callable[[bytes, Hints], Content]] = {
    "text": text_reader.read,
    "markdown": text_reader.read,
    "code": text_reader.read,
    "notebook": notebook_reader.read,
    "pdf": pdf_reader.read,
    "html": html_reader.read,
    **{kind: office_reader.reader(kind) for kind in ("docx", "pptx", "xlsx", "epub")},
}


def read_sources(
    sources: Sequence[str], options: ReadOptions, progress: Progress | None = None
) -> Corpus:
    """Read files, folders and standard input.

    A source that is missing or cannot be opened is an error. One that gives no text (empty, binary,
    encrypted, a scan) is a warning as long as others give some. Files of folders are only reported.

    Args:
        sources: paths as typed; "-" is `options.stdin`. Surrogate escapes for bytes that are not
            UTF-8, as in `sys.argv`.
        progress: called before each input.

    Raises:
        InputError: a source is missing, nothing gives text, or (`strict`) some input is partial.
        UsageError: no source, "-" twice or without standard input, a pattern that is none.
    """
    return _read(expand(sources, options), options, progress)


def read_again(named: Sequence[tuple[str, str]], options: ReadOptions) -> Corpus:
    """Read files under names they had before: (name, absolute path) of each. Raises InputError."""
    return _read([Item(name, path) for name, path in named], options, None)


def _read(items: list[Item], options: ReadOptions, progress: Progress | None) -> Corpus:
    inputs, warnings = [], []
    for index, item in enumerate(items):
        if progress is not None:
            progress(index, len(items), item.name)
        document, found = _read_item(item, options)
        inputs.append(document)
        warnings += found
    warnings += secrets.secret_warnings(inputs)
    documents = tuple(document for document in inputs if document.text)
    corpus = Corpus(documents, tuple(inputs), tuple(warnings))
    if not documents:
        raise _nothing_to_read(corpus)
    if options.strict:
        _refuse_partial(corpus)
    return corpus


def read_bytes(data: bytes, name: str, options: ReadOptions) -> Document:
    """Read one input whose bytes are at hand.

    Args:
        data: all of it.
        name: shown to the model, and decides about the kind where the bytes do not.

    Returns:
        A document; without text where nothing could be read (`status`, `reason`).
    """
    return _read_data(data, Item(printable_name(name), name), options)[0]


def _read_item(item: Item, options: ReadOptions) -> tuple[Document, list[Warning_]]:
    """One input as a document, and what to warn of."""
    try:
        if item.refusal is not None:
            raise item.refusal
        if item.path == STDIN:
            assert options.stdin is not None, "_check_usage refuses - without standard input"
            given = options.stdin
            data = given if isinstance(given, bytes) else given.read(options.encoding)
        elif item.relative is None and item.path.startswith(files.DESCRIPTORS):
            data = files.read_descriptor(item.path)
        else:
            data = files.read_file(item.path, follow=item.relative is None)
            if item.relative is not None:
                skip_rules.check_content(item.relative, data)
    except Refusal as refusal:
        return _refused(item, refusal, b"")
    return _read_data(data, item, options)


def _read_data(data: bytes, item: Item, options: ReadOptions) -> tuple[Document, list[Warning_]]:
    kind = "text"
    try:
        kind = kind_of(item.name, data)
        hints = Hints(options.encoding, options.password, options.pdf_limits)
        content = READERS[kind](data, hints)
    except Refusal as refusal:
        return _refused(item, refusal, data, kind)
    warnings = [
        Warning_(code, f"{item.name}: {text}", item.path) for code, text in content.warnings
    ]
    document = Document(
        name=item.name,
        path=item.path,
        kind=kind,
        sha256=hashlib.sha256(data).hexdigest(),
        num_bytes=len(data),
        text=content.text,
        pages=content.pages,
        encoding=content.encoding,
        status="partial" if content.partial else "read",
        code=content.warnings[0][0] if content.partial else "",
        reason="; ".join(why for _, why in content.warnings),
        hint="",
        outline=content.outline,
    )
    return document, warnings


def _refused(
    item: Item, refusal: Refusal, data: bytes, kind: str = ""
) -> tuple[Document, list[Warning_]]:
    """A document without text. What the user named, and what failed, is worth a warning."""
    document = Document(
        name=item.name,
        path=item.path,
        kind=refusal.kind or kind or "file",
        sha256=hashlib.sha256(data).hexdigest() if data else "",
        num_bytes=len(data) or _size(item.path),
        text="",
        pages=(),
        encoding=None,
        status=refusal.status,
        code=refusal.code,
        reason=refusal.reason,
        hint=refusal.hint,
    )
    found_in_folder = item.relative is not None and refusal.status == "skipped"
    if found_in_folder or refusal.code == "repeated":
        return document, []
    message = f"{item.name}: {refusal.reason}" + (f". {refusal.hint}" if refusal.hint else "")
    return document, [Warning_(refusal.code, message, item.path)]


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except (OSError, ValueError):
        return 0


def _nothing_to_read(corpus: Corpus) -> InputError:
    """Why there is no text at all: the reason of the only input, or the reasons counted."""
    if len(corpus.inputs) == 1:
        only = corpus.inputs[0]
        return InputError(f"{only.name}: {only.reason}", only.hint)
    left_out = all(document.status == "skipped" for document in corpus.inputs)
    if left_out and any(document.code == "not_included" for document in corpus.inputs):
        none = f"none of {len(corpus.inputs):,} files matches --include"
        return InputError(none, "A pattern is written as in .gitignore: '*.py', 'src/**'.")
    lines = [f"{document.name}: {document.reason}" for document in corpus.inputs]
    hints = list(dict.fromkeys(document.hint for document in corpus.inputs if document.hint))
    message = f"nothing to read in {len(lines):,} inputs: {joined(lines)}"
    return InputError(message, hints[0] if len(hints) == 1 else "")


def _refuse_partial(corpus: Corpus) -> None:
    """Raise when anything is missing that the user named or hip tried to read."""
    warned = {warning.path for warning in corpus.warnings}
    lines = [
        f"{document.name}: {document.reason}"
        for document in corpus.inputs
        if document.status in ("partial", "failed")
        or (document.status == "skipped" and document.path in warned)
    ]
    if lines:
        raise InputError(
            f"input is partial, and --strict was given: {joined(lines)}",
            "Leave out --strict to go on with what can be read.",
        )
