"""What a method keeps of a context beside its pages, in a file of the session.

CRC-32 (4 bytes, little-endian), then safetensors.
"""

import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from hipcli.engine.errors import DamagedSessionError
from hipcli.engine.sessions.disk import Disk

if TYPE_CHECKING:
    import torch

FILE = "method.state"
CRC_BYTES = 4


def write_companion(folder: Path, tensors: "dict[str, torch.Tensor]", disk: Disk) -> None:
    """Put the tensors into a session's folder. Raises OSError."""
    from safetensors.torch import save

    data = save({name: tensor.cpu().contiguous() for name, tensor in tensors.items()})
    disk.write(folder / FILE, zlib.crc32(data).to_bytes(CRC_BYTES, "little") + data)


def has_companion(folder: Path) -> bool:
    """Does a session's folder hold more than pages?"""
    return (folder / FILE).exists()


def checked_companion(folder: Path) -> bytes:
    """The tensors in a session's folder, as safetensors.

    Raises:
        DamagedSessionError: they are missing, or not what was written.
    """
    try:
        data = (folder / FILE).read_bytes()
    except OSError as error:
        raise DamagedSessionError(f"{FILE} cannot be read: {error}") from None
    content = data[CRC_BYTES:]
    # The checksum of nothing is 0: an empty file would pass.
    if not content or zlib.crc32(content) != int.from_bytes(data[:CRC_BYTES], "little"):
        raise DamagedSessionError(f"{FILE} is not what was written")
    return content


def read_companion(folder: Path) -> "dict[str, torch.Tensor]":
    """The tensors in a session's folder. Raises as `checked_companion` does."""
    from safetensors.torch import load

    return dict(load(checked_companion(folder)))
