"""Standard input, kept in memory while it is small and in a file without a name beyond that.

A pipe may bring more than the memory holds, or never end: what is waiting to be read costs disk
space up to a limit, and then an error.
"""

import tempfile
from typing import IO, BinaryIO

from hipcli.documents.decode import decode
from hipcli.documents.files import MAX_BYTES
from hipcli.documents.kinds import kind_of
from hipcli.engine.errors import InputError

_IN_MEMORY_BYTES = 1 << 24
_PIECE_BYTES = 1 << 20
_NAME = "stdin"
# Kinds that are decoded; the others are told by their first bytes.
_TEXT = ("text", "code", "markdown", "html", "notebook")


class Spool:
    """All that a pipe brought.

    Args:
        file: holds it.
        num_bytes: how much it is.
    """

    def __init__(self, file: IO[bytes], num_bytes: int) -> None:
        self._file = file
        self.num_bytes = num_bytes

    def read(self, encoding: str | None) -> bytes:
        """All bytes; of large data that no reader takes, nothing.

        Args:
            encoding: the user's word on text.

        Raises:
            Refusal: its beginning is binary, an archive, or of another kind that is not read.
        """
        self._file.seek(0)
        if self.num_bytes > _IN_MEMORY_BYTES:
            head = self._file.read(_PIECE_BYTES)
            if kind_of(_NAME, head) in _TEXT:
                # A line's end: half a character at the cut would look like damage.
                decode(head[: head.rfind(b"\n") + 1] or head, encoding)
            self._file.seek(0)
        return self._file.read()


def spool(stream: BinaryIO, max_bytes: int = MAX_BYTES) -> Spool:
    """Read a stream to its end.

    Raises:
        InputError: it brings more than `max_bytes`, or there is no room for it.
    """
    # It lives as long as what is returned.
    file = tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES)  # noqa: SIM115
    num_bytes = 0
    while piece := _piece(stream):
        num_bytes += len(piece)
        if num_bytes > max_bytes:
            raise InputError(
                f"standard input brings more than {max_bytes:,} bytes",
                "Put it into files, and name the folder.",
            )
        try:
            file.write(piece)
        except OSError as error:
            folder = tempfile.gettempdir()
            raise InputError(
                f"standard input cannot be kept in {folder}: {error.strerror or error}",
                "Make room there, or name another folder in TMPDIR.",
            ) from error
    return Spool(file, num_bytes)


def _piece(stream: BinaryIO) -> bytes:
    try:
        return stream.read(_PIECE_BYTES)
    except OSError as error:
        raise InputError(f"standard input cannot be read: {error.strerror or error}") from error
