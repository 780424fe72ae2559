"""The streams of one run of `hip`: stdin, stdout, stderr, and what the terminal can do.

Everything the program says or reads passes through one `Console`, so a test replaces the terminal
by replacing this object. Rich is not used here; `progress.py` alone draws with it, on stderr.
"""

import io
import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import TYPE_CHECKING, BinaryIO, Protocol, TextIO

from hipcli.engine.errors import HipError, InputError, UsageError
from hipcli.terminal.formatting import escape_controls, one_line

if TYPE_CHECKING:
    from hipcli.documents.spool import Spool

# Questions and names of files; documents may be larger.
_MAX_LIST_BYTES = 1 << 28


class LivePrinter(Protocol):
    """Whoever has drawn a live line on stderr and can print a line above it."""

    def print_above(self, line: str) -> None: ...

    def restore_terminal(self) -> None: ...


class Console:
    """Three streams, and how this run wants to be told about failures.

    Args:
        stdin: text stream with a `buffer`, or None when the process has none.
        stdout: where the answer goes, and nothing else.
        stderr: progress, notices, warnings, errors.
        width: columns of the terminal; the system is asked each time when None.
    """

    def __init__(
        self,
        stdin: TextIO | None,
        stdout: TextIO | None,
        stderr: TextIO | None,
        width: int | None = None,
    ) -> None:
        self.stdin = stdin
        self.stdout = stdout
        self.stderr = stderr
        self.own_width = width
        # Filled in by the command once its options are known.
        self.failure_format = "text"
        self.quiet = False
        self.verbose = 0
        self.debug = False
        self.no_color = False
        # Filled in by the command: what an interrupted user should know.
        self.kept = ""
        # Filled in by the program: numbers of the signals received so far.
        self.signals: list[int] = []
        # Filled in by progress.ProgressView while it shows a live line.
        self.live: LivePrinter | None = None
        for stream in (stdout, stderr):
            # An answer must not be lost because the terminal's encoding lacks a character.
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")

    @classmethod
    def real(cls) -> "Console":
        """The console of this process.

        stdout moves to a descriptor of its own and descriptor 1 becomes a copy of stderr: whatever
        a library or a child process prints lands on stderr and cannot spoil an answer or JSON.
        """
        if sys.stdout is None or sys.stderr is None:
            return cls(sys.stdin, sys.stdout, sys.stderr)
        try:
            own = os.dup(sys.stdout.fileno())
            os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        except (OSError, ValueError):
            return cls(sys.stdin, sys.stdout, sys.stderr)
        stdout = os.fdopen(own, "w", encoding=sys.stdout.encoding, errors="backslashreplace")
        sys.stdout = stdout
        return cls(sys.stdin, stdout, sys.stderr)

    @property
    def width(self) -> int:
        """Columns of the terminal as it is now; whoever sits before it may have resized it."""
        return self.own_width or shutil.get_terminal_size().columns

    @property
    def stdin_is_terminal(self) -> bool:
        return _is_terminal(self.stdin)

    @property
    def stdout_is_terminal(self) -> bool:
        return _is_terminal(self.stdout)

    @property
    def stderr_is_terminal(self) -> bool:
        return _is_terminal(self.stderr)

    def read_stdin(self, example: str) -> bytes:
        """All of stdin: a question, or a list of them or of files.

        Args:
            example: a command line that shows how to feed stdin, for the hint.

        Raises:
            UsageError: stdin is a terminal or closed, so nothing was piped in.
            InputError: more than any list is.
        """
        content = self._stdin_bytes(example).read(_MAX_LIST_BYTES + 1)
        if len(content) > _MAX_LIST_BYTES:
            raise InputError(f"standard input brings more than {_MAX_LIST_BYTES:,} bytes")
        return content

    def spool_stdin(self, example: str) -> "Spool":
        """A document from stdin, kept on disk where it is large.

        Raises:
            UsageError, InputError: as `read_stdin` does, with a larger limit.
        """
        from hipcli.documents.spool import spool

        return spool(self._stdin_bytes(example))

    def _stdin_bytes(self, example: str) -> BinaryIO:
        if self.stdin is None or self.stdin_is_terminal:
            what = "closed" if self.stdin is None else "a terminal"
            raise UsageError(f"standard input is {what}, nothing was piped in", f"try: {example}")
        buffer: BinaryIO | None = getattr(self.stdin, "buffer", None)
        if buffer is None:
            buffer = io.BytesIO(self.stdin.read().encode("utf-8", "surrogateescape"))
        return buffer

    def write(self, text: str) -> None:
        """Writes `text` to stdout and flushes; on a terminal control characters are spelled out."""
        if self.stdout_is_terminal:
            text = escape_controls(text)
        with self._writable_stdout() as stream:
            stream.write(text)
            stream.flush()

    def write_utf8(self, text: str) -> None:
        """Writes `text` to stdout as UTF-8, whatever the terminal's encoding, and flushes."""
        with self._writable_stdout() as stream:
            buffer = getattr(stream, "buffer", None)
            if buffer is None:
                stream.write(text)
            else:
                stream.flush()
                buffer.write(text.encode("utf-8", "backslashreplace"))
            stream.flush()

    @contextmanager
    def _writable_stdout(self) -> Iterator[TextIO]:
        """Makes a stdout that can't be written an error for people; a closed pipe passes."""
        if self.stdout is None:
            raise HipError("standard output is closed, the answer has nowhere to go")
        try:
            yield self.stdout
        except BrokenPipeError:
            self.abandon_stdout()
            raise
        except OSError as error:
            self.abandon_stdout()
            raise HipError(f"cannot write to standard output: {error.strerror or error}") from error

    def note(self, text: str) -> None:
        """A notice for the user; not shown with `-q`."""
        if not self.quiet:
            self.line(text)

    def warn(self, text: str) -> None:
        """A warning; not shown with `-q` (JSON carries it all the same)."""
        if not self.quiet:
            self.line(f"warning: {text}")

    def detail(self, text: str) -> None:
        """Something only `-v` wants to know."""
        if self.verbose:
            self.line(text)

    def line(self, text: str) -> None:
        """One line on stderr. A stderr that is closed or full is no reason to fail."""
        text = one_line(text)
        if self.live is not None:
            self.live.print_above(text)
            return
        self.write_stderr(text + "\n")

    def write_stderr(self, text: str) -> None:
        if self.stderr is not None:
            with suppress(OSError, ValueError):
                self.stderr.write(text)
                self.stderr.flush()

    @contextmanager
    def libraries_kept_quiet(self) -> Iterator[None]:
        """While libraries work: their prints go to stderr, their chatter only with `-v`."""
        import logging

        with redirect_stdout(self.stderr or io.StringIO()), warnings.catch_warnings():
            if not self.verbose:
                warnings.simplefilter("ignore")
                logging.disable(logging.WARNING)
            try:
                yield
            finally:
                logging.disable(logging.NOTSET)

    def restore_terminal(self) -> None:
        """Gives the terminal its cursor back before the process ends without unwinding."""
        if self.live is not None:
            self.live.restore_terminal()

    def settle_stdout(self) -> None:
        """Before the interpreter ends: what stdout refuses now, the user knows already."""
        try:
            if self.stdout is not None:
                self.stdout.flush()
        except (OSError, ValueError):
            self.abandon_stdout()

    def abandon_stdout(self) -> None:
        """Points stdout at nothing: the interpreter's last flush of a broken pipe stays silent."""
        with suppress(OSError, ValueError, AttributeError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.stdout.fileno())  # type: ignore[union-attr]
            os.close(nowhere)


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False
