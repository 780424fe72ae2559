"""The bytes behind every token id.

Two spellings cover the decoders hip runs. Byte-level BPE (GPT-2, Llama 3, Qwen) writes each byte as
one printable character. SentencePiece-style vocabularies (Llama 2, Mistral, Gemma) write a space as
U+2581 and bytes that have no token as `<0x0A>`. Knowing the bytes, decoding is exact, offsets are
sums of lengths, and a stream can hold back half a character.
"""

import re
from collections.abc import Sequence
from enum import Enum

import numpy as np
import tokenizers

from hipcli.engine.errors import ModelError
from hipcli.engine.tokenizer.components import Components

METASPACE = "\u2581"
_STRETCH_TOKENS = 65_536
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Spelling(Enum):
    """How a vocabulary writes bytes as token text."""

    BYTE_LEVEL = "byte-level"
    METASPACE = "metaspace"


def byte_alphabet() -> dict[str, int]:
    """Character -> byte of the byte-level spelling: printable Latin-1 stands for itself, the
    other bytes, in order, for U+0100 and on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + rank): byte for rank, byte in enumerate(others)})
    return alphabet


class Vocabulary:
    """Token id -> bytes, and what the vocabulary cannot say.

    Args:
        backend: the loaded tokenizer, added tokens included.
        components: its normalizer, pre-tokenizer and decoder as JSON.

    Raises:
        ModelError: the vocabulary cannot express arbitrary text.
    """

    def __init__(self, backend: tokenizers.Tokenizer, components: Components) -> None:
        vocab = backend.get_vocab(with_added_tokens=True)
        self.spelling = _spelling(components, vocab)
        self.size = max(vocab.values(), default=-1) + 1
        self.bytes_of: list[bytes] = [b""] * self.size
        self._fill(vocab, {token.content for token in backend.get_added_tokens_decoder().values()})
        self.lengths = np.fromiter(map(len, self.bytes_of), dtype=np.int64, count=self.size)
        self.missing_bytes = self._missing(vocab)
        # U+2581 in a text must not come back as a space, so it is spelled by its bytes.
        self.metaspace_ids: tuple[int, ...] = ()
        if self.spelling is Spelling.METASPACE:
            self.metaspace_ids = tuple(vocab[f"<0x{byte:02X}>"] for byte in METASPACE.encode())

    def _fill(self, vocab: dict[str, int], added: set[str]) -> None:
        if self.spelling is Spelling.METASPACE:
            for token, index in vocab.items():
                match = _BYTE_TOKEN.fullmatch(token)
                self.bytes_of[index] = (
                    bytes([int(match[1], 16)]) if match else token.replace(METASPACE, " ").encode()
                )
            return
        table = {ord(character): byte for character, byte in byte_alphabet().items()}
        for token, index in vocab.items():
            try:
                plain = token in added
                self.bytes_of[index] = (
                    token.encode() if plain else token.translate(table).encode("latin-1")
                )
            except UnicodeEncodeError:
                # Not a spelling of bytes, so an entry no merge can reach; its text is its meaning.
                self.bytes_of[index] = token.encode()

    def _missing(self, vocab: dict[str, int]) -> np.ndarray:
        """Bool [256]: bytes with no token, which the library would drop without a word."""
        missing = np.zeros(256, dtype=bool)
        if self.spelling is Spelling.BYTE_LEVEL:
            for character, byte in byte_alphabet().items():
                missing[byte] = character not in vocab
        return missing

    def join(
        self, ids: "np.ndarray | Sequence[int]", hidden: frozenset[int] = frozenset()
    ) -> bytes:
        """The bytes of `ids` in order, those in `hidden` left out; ids beyond the vocabulary
        (padded embeddings) are empty."""
        table, size = self.bytes_of, self.size
        parts = []
        # In stretches, since a Python number takes eight times the room of an id in an array.
        for start in range(0, len(ids), _STRETCH_TOKENS):
            stretch = ids[start : start + _STRETCH_TOKENS]
            listed = stretch.tolist() if isinstance(stretch, np.ndarray) else stretch
            parts.append(b"".join([table[i] for i in listed if 0 <= i < size and i not in hidden]))
        return b"".join(parts)


def _spelling(components: Components, vocab: dict[str, int]) -> Spelling:
    kinds = components.kinds()
    if "ByteLevel" in kinds:
        return Spelling.BYTE_LEVEL
    if all(f"<0x{byte:02X}>" in vocab for byte in range(256)) and (
        "Metaspace" in kinds or components.replaces_spaces()
    ):
        return Spelling.METASPACE
    raise ModelError(
        "This model's tokenizer cannot express every text: it is neither byte-level BPE nor "
        "a SentencePiece vocabulary with byte fallback.",
        hint="Choose a model of the Llama, Mistral, Qwen, Phi or Granite families.",
    )
