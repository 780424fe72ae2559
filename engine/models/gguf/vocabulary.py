"""The tokenizer of a GGUF file as `tokenizer.json`.

A GGUF file names the rule that splits text before merging (`tokenizer.ggml.pre`) without stating
it. Transformers' reader knows some names and takes GPT-2's rule for the others, SmolLM2's among
them, which gives other tokens around digits than the model was trained on. So byte-level
vocabularies are built here, with rules by name, and an unknown name is refused.
"""

import json
from pathlib import Path
from typing import Any

from hipcli.engine.errors import ModelError
from hipcli.engine.models.gguf.metadata import Metadata

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_CASED = (rf"{_LEAD}{_UPPER}*{_LOWER}+", rf"{_LEAD}{_UPPER}+{_LOWER}*")
_WORDS = rf"{_LEAD}\p{{L}}+"

_LLAMA3 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*{_TAIL}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*{_TAIL}"
_TEKKEN = rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*{_TAIL}"
_GPT4O = (
    rf"{_CASED[0]}{_CONTRACTIONS}?|{_CASED[1]}{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*{_TAIL}"
)

_GPT2 = "gpt-2"
_DIGITS = "digits, then gpt-2"
# Name in the file -> pattern, or one of the two rules above that have no pattern of their own.
SPLITS = {
    **dict.fromkeys(("default", "gpt-2", "gpt2", "phi-2", "olmo", "jais"), _GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), _DIGITS),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "dbrx"), _LLAMA3),
    "smaug-bpe": _LLAMA3,
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2"), _QWEN2),
    "tekken": _TEKKEN,
    **dict.fromkeys(("gpt-4o", "llama4"), _GPT4O),
}
# Files older than the flag: llama.cpp begins these texts with BOS.
_BOS_BY_DEFAULT = frozenset({"llama3", "llama-v3", "llama-bpe"})
_CONTROL, _USER_DEFINED = 3, 4
_NAMED = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


def write_tokenizer(source: Path, metadata: Metadata, config: Any, target: Path) -> None:
    """Write the tokenizer's files into `target`.

    Args:
        config: Transformers' configuration, for vocabularies it reads itself.

    Raises:
        ModelError: a vocabulary or splitting rule hip does not know.
    """
    model = metadata.values.get("tokenizer.ggml.model")
    if model == "gpt2":
        _write_byte_level(source, metadata, target)
        return
    if model != "llama":
        raise ModelError(
            f"{source.name}: hip does not read tokenizers of the kind {model} from GGUF.",
            hint="Take the model's safetensors version.",
        )
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(
        str(source.parent),
        gguf_file=source.name,
        config=config,
        local_files_only=True,
        trust_remote_code=False,
    )
    tokenizer.save_pretrained(str(target))


def byte_level(metadata: Metadata, where: str) -> dict[str, Any]:
    """The content of `tokenizer.json` for a byte-level BPE vocabulary.

    Raises:
        ModelError: the splitting rule has a name hip does not know.
    """
    values = metadata.values
    name = values.get("tokenizer.ggml.pre", "default")
    if name not in SPLITS:
        raise ModelError(
            f"{where}: it splits text by the rule {name!r}, which hip does not know.",
            hint="Take the model's safetensors version.",
        )
    tokens = values["tokenizer.ggml.tokens"]
    kinds = values.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    added = [
        _added(index, token, special=kind == _CONTROL)
        for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": _pre_tokenizer(SPLITS[name]),
        "post_processor": None,
        "decoder": _byte_level_step(use_regex=True),
        "model": {
            "type": "BPE",
            # Llama 3's vocabulary has whole words that no merges reach.
            "ignore_merges": SPLITS[name] == _LLAMA3,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [merge.split(" ", 1) for merge in values["tokenizer.ggml.merges"]],
        },
    }


def _write_byte_level(source: Path, metadata: Metadata, target: Path) -> None:
    values = metadata.values
    spec = byte_level(metadata, source.name)
    (target / "tokenizer.json").write_text(json.dumps(spec, ensure_ascii=False), encoding="utf-8")
    tokens = values["tokenizer.ggml.tokens"]
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    for name, key in _NAMED.items():
        index = values.get(f"tokenizer.ggml.{key}")
        if index is not None and 0 <= index < len(tokens):
            config[name] = tokens[index]
    default = values.get("tokenizer.ggml.pre") in _BOS_BY_DEFAULT
    config["add_bos_token"] = bool(values.get("tokenizer.ggml.add_bos_token", default))
    text = json.dumps(config, ensure_ascii=False, indent=2) + "\n"
    (target / "tokenizer_config.json").write_text(text, encoding="utf-8")
    template = values.get("tokenizer.chat_template")
    if template:
        (target / "chat_template.jinja").write_text(template, encoding="utf-8")


def _pre_tokenizer(split: str) -> dict[str, Any]:
    if split == _GPT2:
        return _byte_level_step(use_regex=True)
    if split == _DIGITS:
        digits = {"type": "Digits", "individual_digits": True}
        return {"type": "Sequence", "pretokenizers": [digits, _byte_level_step(use_regex=True)]}
    pattern = {
        "type": "Split",
        "pattern": {"Regex": split},
        "behavior": "Isolated",
        "invert": False,
    }
    return {"type": "Sequence", "pretokenizers": [pattern, _byte_level_step(use_regex=False)]}


def _byte_level_step(use_regex: bool) -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def _added(index: int, token: str, special: bool) -> dict[str, Any]:
    return {
        "id": index,
        "content": token,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": special,
    }
