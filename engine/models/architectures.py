"""Which models hip's attention can stand in for, decided from `config.json` alone.

hip keeps keys un-rotated and rotates them itself. That is right only where the model calls its
attention through Transformers' attention interface, rotates queries and keys just before by the
half-split rule with one table for all layers, and attends to everything before a token. Each type
allowed here is compared with the stock model in the tests; any other is refused by name.
"""

from typing import Any

from hipcli.engine.errors import ModelError

SUPPORTED = frozenset(
    {
        "apertus",
        "arcee",
        "gemma",
        "granite",
        "granitemoe",
        "llama",
        "mistral",
        "mixtral",
        "nemotron",
        "olmo",
        "olmo2",
        "olmoe",
        "phi",
        "phi3",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "seed_oss",
        "stablelm",
        "starcoder2",
    }
)

_INTERLEAVED = "its rotary positions are interleaved, not half-split"
_WINDOWS = "some of its layers see only a sliding window"
_NO_POSITIONS = "some of its layers have no positions"
_COMPRESSED = "it stores compressed keys and values"
_NO_ATTENTION = "some of its layers are not attention"
_NO_ROTARY = "it has no rotary positions"

# Well-known types that cannot work, with the reason.
REFUSED = {
    "bloom": _NO_ROTARY,
    "cohere": _INTERLEAVED,
    "cohere2": _NO_POSITIONS,
    "deepseek_v2": _COMPRESSED,
    "deepseek_v3": _COMPRESSED,
    "ernie4_5": _INTERLEAVED,
    "exaone4": _NO_POSITIONS,
    "falcon_h1": _NO_ATTENTION,
    "falcon_mamba": _NO_ATTENTION,
    "gemma2": "it caps attention scores and slides windows",
    "gemma3": _WINDOWS,
    "gemma3_text": _WINDOWS,
    "gemma3n": _WINDOWS,
    "gemma4": _WINDOWS,
    "gemma4_text": _WINDOWS,
    "glm": _INTERLEAVED,
    "glm4": _INTERLEAVED,
    "gpt2": _NO_ROTARY,
    "gpt_bigcode": _NO_ROTARY,
    "gpt_oss": _WINDOWS,
    "granitemoehybrid": _NO_ATTENTION,
    "helium": _INTERLEAVED,
    "lfm2": _NO_ATTENTION,
    "llama4": _NO_POSITIONS,
    "llama4_text": _NO_POSITIONS,
    "mamba": _NO_ATTENTION,
    "mamba2": _NO_ATTENTION,
    "ministral3": "it scales queries by their position",
    "mpt": _NO_ROTARY,
    "olmo3": _WINDOWS,
    "opt": _NO_ROTARY,
    "qwen3_5": _NO_ATTENTION,
    "qwen3_5_text": _NO_ATTENTION,
    "qwen3_next": _NO_ATTENTION,
    "smollm3": _NO_POSITIONS,
}

_ROPE_TYPES = frozenset({"default", "linear", "dynamic", "yarn", "longrope", "su", "llama3"})
# Types whose `sliding_window` stands in the configuration without being in use.
_WINDOW_OFF_BY_DEFAULT = frozenset({"qwen2", "qwen3", "qwen3_moe"})


def check_config(config: dict[str, Any], where: str) -> None:
    """Refuse what hip cannot run.

    Args:
        config: the content of `config.json`, or the same of a configuration object.
        where: the model's name, for the message.

    Raises:
        ModelError: with the architecture and the reason.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise ModelError(
            f"{where}: config.json names no model_type.", hint="This is not a language model."
        )
    if model_type not in SUPPORTED:
        reason = REFUSED.get(model_type, "its attention has not been checked against hip's")
        raise _refusal(where, model_type, reason)
    try:
        reasons = [_layers(config), _window(config), _rope(config), _rest(config)]
    except (TypeError, AttributeError) as error:
        raise ModelError(
            f"{where}: config.json is damaged: {error}.", hint="Pull the model again."
        ) from error
    for reason in reasons:
        if reason:
            raise _refusal(where, model_type, reason)


def _refusal(where: str, model_type: str, reason: str) -> ModelError:
    return ModelError(
        f"{where}: hip does not run this {model_type} model: {reason}.",
        hint=f"Architectures that work: {', '.join(sorted(SUPPORTED))}.",
    )


def _layers(config: dict[str, Any]) -> str:
    others = {kind for kind in config.get("layer_types") or () if kind != "full_attention"}
    if others:
        return f"it has layers of the kind {', '.join(sorted(map(str, others)))}"
    return "its attention looks at chunks" if config.get("attention_chunk_size") else ""


def _window(config: dict[str, Any]) -> str:
    if config.get("layer_types"):
        return ""
    window = config.get("sliding_window")
    default = config["model_type"] not in _WINDOW_OFF_BY_DEFAULT
    if not window or not config.get("use_sliding_window", default):
        return ""
    # A window as long as the trained context hides nothing within it.
    if window >= (config.get("max_position_embeddings") or 0):
        return ""
    return f"its layers see only a sliding window of {window} tokens"


def _rope(config: dict[str, Any]) -> str:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if any(isinstance(value, dict) for value in rope.values()):
        return "its layers differ in their rotary positions"
    kind = rope.get("rope_type") or rope.get("type") or "default"
    return "" if kind in _ROPE_TYPES else f"its rotary positions are of the kind {kind}"


def _rest(config: dict[str, Any]) -> str:
    if config.get("attn_logit_softcapping"):
        return "it caps attention scores"
    if config.get("quantization_config"):
        method = config["quantization_config"].get("quant_method", "unknown")
        return f"its weights are quantized by {method}; hip reads plain safetensors and GGUF"
    return ""
