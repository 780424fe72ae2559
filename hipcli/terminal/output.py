"""Answers and JSON on their way out: to stdout, or whole to a file. Never through Rich.

JSON is UTF-8 whatever the terminal speaks. A file named by `-o` appears complete or not at all.
"""

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from hipcli.engine.errors import HipError, UsageError
from hipcli.terminal.console import Console

if TYPE_CHECKING:
    from hipcli.config.settings import Settings

SCHEMA_VERSION = 1


class Sink(Protocol):
    """Where a command's output goes."""

    def write(self, text: str) -> None:
        """A piece of an answer."""

    def write_json(self, value: Mapping[str, Any]) -> None:
        """One JSON value on a line of its own."""


class StdoutSink:
    """stdout: each piece is written and flushed at once."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def write(self, text: str) -> None:
        self._console.write(text)

    def write_json(self, value: Mapping[str, Any]) -> None:
        self._console.write_utf8(json_line(value))


class FileSink:
    """Bytes kept until the command has ended well."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def write(self, text: str) -> None:
        self.write_bytes(text.encode("utf-8", "backslashreplace"))

    def write_json(self, value: Mapping[str, Any]) -> None:
        self.write(json_line(value))

    def write_bytes(self, data: bytes) -> None:
        """Data that is no text."""
        self.pieces.append(data)


@contextmanager
def open_sink(console: Console, path: Path | None, flag: str = "-o") -> Iterator[Sink]:
    """stdout when `path` is None or `-`, else the file, which appears when the block ends well.

    Args:
        flag: the option that names `path`.

    Raises:
        UsageError: `path` is a folder, or its folder does not exist or refuses new files; said
            before any work is done.
        HipError: the file could not be completed.
    """
    if path is None or str(path) == "-":
        yield StdoutSink(console)
        return
    with open_file(path, flag) as sink:
        yield sink


@contextmanager
def open_file(path: Path, flag: str) -> Iterator[FileSink]:
    """The file, which appears when the block ends well.

    Args:
        flag: the option that names `path`.

    Raises:
        UsageError, HipError: as `open_sink` does.
    """
    target = path.resolve()
    in_place = _in_place(target)
    partial = target if in_place else _beside(target)
    stream = _opened(partial, path, flag)
    sink = FileSink()
    try:
        with _closing_quietly(stream):
            yield sink
            _complete(sink, stream, path, durable=not in_place)
        if not in_place:
            _keep_mode(target, partial)
            partial.replace(target)
    finally:
        if not in_place:
            with suppress(OSError):
                partial.unlink()


def check_file(path: Path | None, flag: str) -> None:
    """Refuse before any work what `open_file` would refuse after it; None and `-` pass.

    Raises:
        UsageError: as `open_sink` does.
    """
    if path is None or str(path) == "-":
        return
    target = path.resolve()
    if target.is_dir():
        _opened(target, path, flag)
    elif not _in_place(target):
        partial = _beside(target)
        _opened(partial, path, flag).close()
        partial.unlink()


def _in_place(target: Path) -> bool:
    """A device or a FIFO is written to; replacing it by a regular file would be vandalism."""
    return target.exists() and not target.is_file()


def _beside(target: Path) -> Path:
    """What is written until it is whole."""
    return target.with_name(f".{target.name}.{os.getpid()}.tmp")


def _opened(partial: Path, path: Path, flag: str) -> BinaryIO:
    """The file to write, which is `partial` of `path`.

    Raises:
        UsageError: it cannot be opened.
    """
    try:
        return partial.open("wb" if _in_place(partial) else "xb")
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror}", f"check the path given to {flag}"
        ) from error


@contextmanager
def _closing_quietly(stream: BinaryIO) -> Iterator[None]:
    """Closes `stream` at the end; what it cannot write then, `_complete` has said already."""
    try:
        yield
    finally:
        with suppress(OSError):
            stream.close()


def _complete(sink: FileSink, stream: BinaryIO, path: Path, durable: bool) -> None:
    """Writes all of `sink` to `stream`, and if `durable` to the disk below it."""
    try:
        stream.write(b"".join(sink.pieces))
        stream.flush()
        if durable:
            os.fsync(stream.fileno())
    except OSError as error:
        raise HipError(f"cannot write {path}: {error.strerror or error}") from error


def _keep_mode(target: Path, temporary: Path) -> None:
    """A file that is replaced keeps its permissions."""
    with suppress(OSError):
        temporary.chmod(target.stat().st_mode & 0o7777)


class AnswerWriter:
    """Writes an answer piece by piece so that it ends with exactly one newline."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._held_back = ""

    def write(self, text: str) -> None:
        """Writes `text`, but for line ends at its end: there may be nothing after them."""
        body = (self._held_back + text).rstrip("\n")
        self._held_back = (self._held_back + text)[len(body) :]
        if body:
            self._sink.write(body)

    def finish(self) -> None:
        self._held_back = ""
        self._sink.write("\n")


def json_line(value: Mapping[str, Any]) -> str:
    """`value` as JSON on one line; a float that JSON cannot hold becomes null."""
    return json.dumps(_plain(value), ensure_ascii=False, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value) if isinstance(value, Path) else value


def show(console: Console, settings: "Settings", text: str, /, **fields: Any) -> None:
    """What a command found: text for people or one JSON document, where the options say.

    Args:
        text: whole lines; may be empty, when all there is to say stands on stderr.
        fields: of the JSON document.
    """
    with open_sink(console, settings.values.get("output")) as sink:
        if settings.output_format == "json":
            sink.write_json({"schema_version": SCHEMA_VERSION, **fields})
        elif text:
            sink.write(text)


def columns(console: Console, settings: "Settings") -> int | None:
    """Columns of the terminal that a command's output goes to; None if it goes elsewhere."""
    elsewhere = settings.values.get("output") is not None or not console.stdout_is_terminal
    return None if elsewhere else console.width


def requested_format(words: Sequence[str], elsewhere: Iterable[str] = ()) -> str:
    """How a failure is to be told when the command line itself could not be parsed.

    Args:
        words: the command line.
        elsewhere: formats that the environment asks for, when the words ask for none.
    """
    options = words[: words.index("--")] if "--" in words else words
    if "--jsonl" in options:
        return "jsonl"
    return "json" if "--json" in options else next(iter(elsewhere), "text")


def error_row(failure: HipError) -> dict[str, str]:
    """A failure as JSON."""
    return {"code": failure.code, "message": failure.message, "hint": failure.hint}


def show_failure(console: Console, failure: HipError) -> None:
    """One line on stderr and, when JSON was asked for, the error as JSON on stdout."""
    if failure.code in ("interrupted", "terminated"):
        console.line(f"{failure.message}: {failure.hint}" if failure.hint else failure.message)
    else:
        hint = f" ({failure.hint})" if failure.hint else ""
        console.line(f"error: {failure.message}{hint}")
    if console.failure_format == "text":
        return
    document: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "error": error_row(failure)}
    if console.failure_format == "jsonl":
        document = {"event": "error", **document}
    # The failure is already being reported: a stdout that is gone adds nothing to it.
    try:
        console.write_utf8(json_line(document))
    except (OSError, HipError):
        console.abandon_stdout()
