"""The gates of a checkpoint that was trained with Infini-attention.

They lie beside the weights, in `infini.safetensors`: one tensor, `gates`, fp32 [layers, heads],
before the sigmoid. Transformers has no place for them in its own model classes.
"""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from hipcli.engine.errors import ModelError

if TYPE_CHECKING:
    import torch

FILE = "infini.safetensors"
NAME = "gates"


def save_gates(folder: Path, gates: "torch.Tensor") -> None:
    """Put gates [num_layers, num_heads] beside the weights in a model's folder."""
    from safetensors.torch import save_file

    save_file({NAME: gates.detach().float().cpu().contiguous()}, folder / FILE)


def load_gates(folder: Path, num_layers: int, num_heads: int) -> "torch.Tensor":
    """The gates of a model, fp32 [num_layers, num_heads].

    Raises:
        ModelError: there are none, or they are not this model's.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = folder / FILE
    if not path.is_file():
        raise ModelError(
            f"{folder.name} has no gates for the method infini ({FILE} is not there): with random"
            " ones its answers would be worth nothing",
            "use another method; benchmarks/infini.py shows how gates are trained",
        )
    try:
        gates: torch.Tensor = load_file(path)[NAME].float()
    except (SafetensorError, OSError, KeyError) as error:
        raise ModelError(f"{path} holds no usable gates: {error}", "restore the file") from None
    if gates.shape != (num_layers, num_heads):
        raise ModelError(
            f"{path}: gates for {tuple(gates.shape)} layers and heads; the model has"
            f" {(num_layers, num_heads)}",
            "its files do not belong together",
        )
    return gates


def gates_digest(gates: "torch.Tensor") -> str:
    """SHA-256 (hexadecimal) of the gates, for a session's identity."""
    return hashlib.sha256(gates.numpy().tobytes()).hexdigest()
