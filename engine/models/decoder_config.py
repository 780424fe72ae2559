"""What `config.json` says of a decoder that `decoder.py` can build, or that it does not say all.

Transformers fills gaps of a configuration from its classes, which differ between its versions. A
file that leaves a gap where it matters is left to Transformers.
"""

from dataclasses import asdict, dataclass
from typing import Any

# Norms of queries and keys, by model type.
_HEAD_NORMS = {"llama": False, "mistral": False, "qwen2": False, "qwen3": True}

_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
)
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLP = ("gate_proj", "up_proj", "down_proj")
# Projections that have a bias: always, and where an entry says so.
_BIASED: dict[str, frozenset[str]] = {"qwen2": frozenset(_ATTENTION[:3])}
_BIASED_BY: dict[str, dict[str, tuple[str, ...]]] = {
    "llama": {"attention_bias": _ATTENTION, "mlp_bias": _MLP},
    "qwen3": {"attention_bias": _ATTENTION},
}
# Where the class, and not the file, would say that layers see a sliding window.
_WINDOW = {"mistral": "sliding_window", "qwen2": "use_sliding_window", "qwen3": "head_dim"}


@dataclass(slots=True)
class DecoderConfig:
    """Names and meanings are those of `config.json`.

    Args:
        biased: names of the projections that have a bias.
        head_norms: queries and keys are normalised head by head.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    max_position_embeddings: int
    head_dim: int
    rms_norm_eps: float
    tie_word_embeddings: bool
    head_norms: bool
    biased: frozenset[str]
    rope_parameters: dict[str, Any]

    @classmethod
    def of(cls, record: dict[str, Any]) -> "DecoderConfig | None":
        """From the content of `config.json`; None if it is of another kind or leaves gaps."""
        kind = record.get("model_type")
        if kind not in _HEAD_NORMS or record.get("hidden_act") != "silu":
            return None
        if _WINDOW.get(kind, "model_type") not in record:
            return None
        sizes: dict[str, Any] = {name: record.get(name) for name in _SIZES}
        tied, epsilon = record.get("tie_word_embeddings"), record.get("rms_norm_eps")
        rope = _rope(record)
        if not all(type(size) is int and size > 0 for size in sizes.values()):
            return None
        if not isinstance(tied, bool) or not isinstance(epsilon, float) or rope is None:
            return None
        heads, head_dim = record["num_attention_heads"], record.get("head_dim")
        biased = _biased(record)
        if head_dim is None:
            head_dim = record["hidden_size"] // heads
        if type(head_dim) is not int or head_dim <= 0 or head_dim % 2 or biased is None:
            return None
        if heads % record["num_key_value_heads"]:
            return None
        return cls(
            model_type=kind,
            head_dim=head_dim,
            rms_norm_eps=epsilon,
            tie_word_embeddings=tied,
            head_norms=_HEAD_NORMS[kind],
            biased=biased,
            rope_parameters=rope,
            **sizes,
        )

    def to_dict(self) -> dict[str, Any]:
        """As `config.json` has it."""
        return asdict(self)


def _biased(record: dict[str, Any]) -> frozenset[str] | None:
    """Names of the projections that have a bias; None where an entry is neither yes nor no."""
    kind = record["model_type"]
    names = set(_BIASED.get(kind, frozenset()))
    for entry, projections in _BIASED_BY.get(kind, {}).items():
        given = record.get(entry, False)
        if not isinstance(given, bool):
            return None
        names.update(projections if given else ())
    return frozenset(names)


def _rope(record: dict[str, Any]) -> dict[str, Any] | None:
    """`rope_parameters` as Transformers has them, also from the older two entries."""
    if "partial_rotary_factor" in record:
        return None
    rope = record.get("rope_parameters")
    if rope is not None:
        given = isinstance(rope, dict) and {"rope_type", "rope_theta"} <= rope.keys()
        return rope if given and "rope_scaling" not in record else None
    scaling, theta = record.get("rope_scaling") or {}, record.get("rope_theta")
    if theta is None or not isinstance(scaling, dict) or {"type", "rope_theta"} & scaling.keys():
        return None
    return {"rope_type": "default", **scaling, "rope_theta": theta}
