"""Encoding text as nothing but text.

A document may contain `<|im_end|>` or `</s>`. Encoded in the ordinary way these become the ids
that end a turn, and the rest of the document speaks in the system's voice. Here they are spelled
out like any other characters. Nor is anything added or tidied: no dummy space at the start, no
Unicode normalization, so that decoding gives back the very text.
"""

import re

import numpy as np
import tokenizers

from hipcli.engine.errors import ModelError
from hipcli.engine.tokenizer.components import Components, build, flatten, is_space_replacement
from hipcli.engine.tokenizer.pieces import cut
from hipcli.engine.tokenizer.vocabulary import METASPACE, Spelling, Vocabulary

# Pieces handed to the library at once: bounds the memory of its result objects.
_BATCH_PIECES = 128
_REPLACEMENT = "\ufffd"
_SURROGATES = re.compile("[\ud800-\udfff]")


class LiteralEncoder:
    """Text to ids, with every control token inert.

    Args:
        backend: the tokenizer; this encoder owns and edits it.
        components: its parts before the edit.
        vocabulary: its token bytes.
        control: added tokens that mean something to the model; their ids never come out.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        components: Components,
        vocabulary: Vocabulary,
        control: dict[str, int],
    ) -> None:
        self._backend = backend
        self._vocabulary = vocabulary
        self._control = control
        self._control_ids = np.array(sorted(control.values()), dtype=np.int32)
        _make_inert(backend, components, control)

    def prepare(self, text: str) -> tuple[str, int]:
        """The text with each character this vocabulary cannot spell replaced by U+FFFD (`?` where
        that is missing too), one for one, and their number."""
        text, replaced = _SURROGATES.subn(_REPLACEMENT, text)
        data = np.frombuffer(text.encode(), dtype=np.uint8)
        missing = self._vocabulary.missing_bytes
        if not missing.any() or not missing[data].any():
            return text, replaced
        substitute = _REPLACEMENT if not missing[list(_REPLACEMENT.encode())].any() else "?"
        bad = np.flatnonzero(missing[data])
        characters = np.unique(np.cumsum((data & 0xC0) != 0x80)[bad] - 1)
        units = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32).copy()
        units[characters] = ord(substitute)
        return units.tobytes().decode("utf-32-le"), replaced + len(characters)

    def encode(self, text: str) -> np.ndarray:
        """Ids int32 [N] of a prepared text; their bytes join to the text.

        Raises:
            ModelError: the tokenizer loses or invents text, whatever is done about it.
        """
        if not text:
            return np.zeros(0, dtype=np.int32)
        pieces = [part for piece in cut(text) for part in self._spell_metaspace(piece)]
        ids = np.concatenate(self._encode_pieces(pieces))
        if self._vocabulary.join(ids) != text.encode():
            raise ModelError(
                "This model's tokenizer does not give back the text it is given.",
                hint="Its tokenizer.json has a step hip does not know; choose another model.",
            )
        return ids

    def _spell_metaspace(self, piece: str) -> list[str]:
        if self._vocabulary.spelling is not Spelling.METASPACE or METASPACE not in piece:
            return [piece]
        return [part for part in re.split(f"({METASPACE})", piece) if part]

    def _encode_pieces(self, pieces: list[str]) -> list[np.ndarray]:
        results: list[np.ndarray] = []
        for start in range(0, len(pieces), _BATCH_PIECES):
            batch = pieces[start : start + _BATCH_PIECES]
            encodings = self._backend.encode_batch_fast(batch, add_special_tokens=False)
            for piece, encoding in zip(batch, encodings, strict=True):
                if piece == METASPACE and self._vocabulary.metaspace_ids:
                    results.append(np.array(self._vocabulary.metaspace_ids, dtype=np.int32))
                else:
                    results.append(self._without_control(piece, encoding.ids))
        return results

    def _without_control(self, piece: str, found: list[int]) -> np.ndarray:
        """The ids, or where the model itself (its merges, its whole-word look-up) came up with a
        control token, the ids of the piece cut inside each such token's text."""
        ids = np.array(found, dtype=np.int32)
        if not np.isin(ids, self._control_ids).any():
            return ids
        spelled = sorted(self._control, key=len, reverse=True)
        pattern = re.compile("|".join(re.escape(token) for token in spelled))
        cuts = [match.start() + 1 for match in pattern.finditer(piece)]
        bounds = [0, *cuts, len(piece)]
        parts = [piece[a:b] for a, b in zip(bounds, bounds[1:], strict=False) if b > a]
        again = self._backend.encode_batch_fast(parts, add_special_tokens=False)
        ids = np.concatenate([np.array(each.ids, dtype=np.int32) for each in again])
        if np.isin(ids, self._control_ids).any():
            raise ModelError(
                "This model's tokenizer turns plain text into a control token.",
                hint="Text and instructions cannot be kept apart with it; choose another model.",
            )
        return ids


def _make_inert(
    backend: tokenizers.Tokenizer, components: Components, control: dict[str, int]
) -> None:
    """Edit `backend` so that it encodes literally: see the module's docstring."""
    backend.no_truncation()
    backend.no_padding()
    # The library skips only tokens flagged special, and files leave the flag off some of them
    # (`</s>` of Phi-3, `<think>` of Qwen 3).
    backend.add_special_tokens(
        [tokenizers.AddedToken(token, special=True, normalized=False) for token in control]
    )
    backend.encode_special_tokens = True
    kept = [
        part
        for part in flatten(components.normalizer)
        if is_space_replacement(part) or part.get("type") == "ByteLevel"
    ]
    backend.normalizer = build("normalizer", kept)
    steps = [_without_prefix(part) for part in flatten(components.pre_tokenizer)]
    backend.pre_tokenizer = build("pre_tokenizer", steps)


def _without_prefix(part: dict) -> dict:
    """A pre-tokenizer part that puts no space before the text."""
    if part.get("type") == "Metaspace":
        return {**part, "prepend_scheme": "never"}
    if part.get("type") == "ByteLevel":
        return {**part, "add_prefix_space": False}
    return part
