"""What a GGUF file says about itself, as far as Transformers does not ask."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hipcli.engine.errors import ModelError

# Per-frequency factors of the rotary positions, which Transformers leaves out.
_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


@dataclass(frozen=True, slots=True, eq=False)
class Metadata:
    """Keys and a few tensors of a GGUF file.

    Args:
        architecture: `llama`, `qwen2`, ...
        values: every key with its value.
        dtype: what the converted weights are stored as: the file's own float type where all of it
            is of one, else `bfloat16`.
        factors: tensor name -> fp32 [rotary_dim / 2].
    """

    architecture: str
    values: dict[str, Any]
    dtype: str
    factors: dict[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "Metadata":
        """Read a file's keys.

        Raises:
            ModelError: it is not GGUF, or damaged.
        """
        # Takes as long as the rest of hip's start, and only conversion needs it.
        import gguf

        try:
            reader = gguf.GGUFReader(str(path))
            values = {key: entry.contents() for key, entry in reader.fields.items()}
            kinds = {tensor.tensor_type.name for tensor in reader.tensors}
            factors = {
                tensor.name: np.array(tensor.data, dtype=np.float32)
                for tensor in reader.tensors
                if tensor.name in _FACTORS
            }
        except Exception as error:
            # The reader checks little, so a damaged file fails in any of many ways.
            raise ModelError(
                f"{path.name} is not a readable GGUF file: {error}", hint="Download it again."
            ) from error
        plain = {"F32": "float32", "F16": "float16"}
        dtype = plain.get("F16" if kinds == {"F16", "F32"} else "".join(kinds), "bfloat16")
        return cls(str(values.get("general.architecture", "")), values, dtype, factors)

    def get(self, key: str, default: Any = None) -> Any:
        """A key of the model's own section, `{arch}.` left out."""
        return self.values.get(f"{self.architecture}.{key}", default)
