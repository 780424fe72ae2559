"""Rotary scaling of a GGUF file, which Transformers' reader does not carry over.

Without it a model of 131,072 tokens would be used as one of 8,192, and nobody would be told.
"""

import math
from typing import Any

import numpy as np

from hipcli.engine.errors import ModelError
from hipcli.engine.models.gguf.metadata import Metadata

# The published settings of Llama 3.1 (factor 8) and 3.2 (32); a file holds only their result.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3_CONTEXT_TOKENS = 8192
_LLAMA3_FACTORS = (8.0, 32.0)


def rope_parameters(metadata: Metadata, plain: dict[str, Any], where: str) -> dict[str, Any] | None:
    """The configuration's `rope_parameters` with the file's scaling; None when there is none.

    Args:
        plain: those Transformers made, with `rope_theta`.

    Raises:
        ModelError: a kind of scaling hip cannot express.
    """
    kind = metadata.get("rope.scaling.type", "none")
    if "rope_freqs.weight" in metadata.factors:
        return plain | _llama3(metadata, float(plain.get("rope_theta", 10_000.0)), where)
    if metadata.factors or kind not in ("none", "linear", "yarn"):
        raise _unknown(where, kind)
    factor = metadata.get("rope.scaling.factor")
    if kind == "none" or not factor:
        return None
    scaled = plain | {"rope_type": kind, "factor": float(factor)}
    original = metadata.get("rope.scaling.original_context_length")
    if kind == "yarn" and original:
        scaled["original_max_position_embeddings"] = int(original)
    return scaled


def llama3_factors(rope_theta: float, rotary_dim: int, factor: float) -> np.ndarray:
    """By what Llama 3's rule divides each frequency: fp64 [rotary_dim / 2].

    Wavelengths beyond the old context are stretched by `factor`, short ones not at all, and those
    between by a blend of both.
    """
    frequencies = rope_theta ** -(np.arange(0, rotary_dim, 2) / rotary_dim)
    turns = _LLAMA3_CONTEXT_TOKENS * frequencies / (2 * math.pi)
    low, high = _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"]
    blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return 1.0 / ((1.0 - blend) / factor + blend)


def _llama3(metadata: Metadata, rope_theta: float, where: str) -> dict[str, Any]:
    found = metadata.factors["rope_freqs.weight"].reshape(-1)
    for factor in _LLAMA3_FACTORS:
        expected = llama3_factors(rope_theta, 2 * len(found), factor)
        if np.allclose(found, expected, rtol=1e-3):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "original_max_position_embeddings": _LLAMA3_CONTEXT_TOKENS,
                **_LLAMA3,
            }
    raise _unknown(where, "frequency factors of its own")


def _unknown(where: str, kind: str) -> ModelError:
    return ModelError(
        f"{where}: its rotary positions are scaled in a way hip cannot read from GGUF ({kind}).",
        hint="Take the model's safetensors version.",
    )
