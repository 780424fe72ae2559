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


def read_companion(folder: Path) -> "dict[str, torch.Tensor]":
    """The tensors in a session's folder.

    Raises:
        DamagedSessionError: they are missing, or not what was written.
    """
    from safetensors.torch import load

    try:
        data = (folder / FILE).read_bytes()
    except OSError as error:
        raise DamagedSessionError(f"{FILE} cannot be read: {error}") from None
    if zlib.crc32(data[CRC_BYTES:]) != int.from_bytes(data[:CRC_BYTES], "little"):
        raise DamagedSessionError(f"{FILE} is not what was written")
    return dict(load(data[CRC_BYTES:]))
