"""The parts of a tokenizer as JSON, read from the library's own objects and edited there.

The library shows its parts only as opaque objects; their pickled state is plain JSON, which is
also what `tokenizer.json` holds. Reading the parts this way avoids parsing a vocabulary twice.
"""

import json
from collections.abc import Iterator
from typing import Any

import tokenizers

Spec = dict[str, Any] | None

# A part inside a sequence stands under one of these keys.
_NESTED = ("normalizers", "pretokenizers", "decoders", "processors")
_EMPTY: dict[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": None,
    "model": {"type": "BPE", "vocab": {}, "merges": []},
}


class Components:
    """Normalizer, pre-tokenizer, decoder and post-processor of a tokenizer, as JSON."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self.normalizer = _spec(backend.normalizer)
        self.pre_tokenizer = _spec(backend.pre_tokenizer)
        self.decoder = _spec(backend.decoder)
        self.post_processor = _spec(backend.post_processor)

    def kinds(self) -> set[str]:
        """Types of every normalizer, pre-tokenizer and decoder part."""
        parts = (self.normalizer, self.pre_tokenizer, self.decoder)
        return {str(part.get("type")) for spec in parts for part in flatten(spec)}

    def replaces_spaces(self) -> bool:
        """Whether a normalizer writes spaces as U+2581."""
        return any(is_space_replacement(part) for part in flatten(self.normalizer))

    def dummy_prefix(self) -> str:
        """Where the tokenizer puts a space of its own: `never`, `first` (start of the text) or
        `always` (start of every stretch between control tokens)."""
        for part in flatten(self.normalizer):
            if part.get("type") == "Prepend":
                return "always"
        for part in flatten(self.pre_tokenizer):
            if part.get("type") == "Metaspace":
                legacy = "always" if part.get("add_prefix_space") else "never"
                return str(part.get("prepend_scheme", legacy))
            if part.get("type") == "ByteLevel" and part.get("add_prefix_space"):
                return "always"
        return "never"

    def leading_tokens(self) -> list[int]:
        """Ids the post-processor puts before a text, in order (a BOS, as a rule)."""
        ids: list[int] = []
        for part in flatten(self.post_processor):
            if part.get("type") != "TemplateProcessing":
                continue
            for item in part.get("single", []):
                if "SpecialToken" not in item:
                    break
                ids.extend(part["special_tokens"][item["SpecialToken"]["id"]]["ids"])
        return ids


def flatten(spec: Spec) -> Iterator[dict[str, Any]]:
    """The parts of a component that is one part, a sequence of parts, or nothing."""
    if spec is None:
        return
    nested = next((spec[key] for key in _NESTED if key in spec), None)
    if nested is None:
        yield spec
        return
    for part in nested:
        yield from flatten(part)


def is_space_replacement(part: dict[str, Any]) -> bool:
    """Whether a normalizer part turns a space into U+2581 and does nothing else."""
    return (
        part.get("type") == "Replace"
        and part.get("pattern") == {"String": " "}
        and part.get("content") == "\u2581"
    )


def build(kind: str, parts: list[dict[str, Any]]) -> Any:
    """The library's object for a `normalizer` or `pre_tokenizer` made of `parts`; None for none."""
    if not parts:
        return None
    nested = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers"}[kind]
    spec = parts[0] if len(parts) == 1 else {"type": "Sequence", nested: parts}
    return getattr(tokenizers.Tokenizer.from_str(json.dumps({**_EMPTY, kind: spec})), kind)


def _spec(component: Any) -> Spec:
    return None if component is None else json.loads(component.__getstate__())
