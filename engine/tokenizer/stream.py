"""Decoding an answer while it is written: complete characters only."""

import codecs

from hipcli.engine.tokenizer.vocabulary import Vocabulary


class Stream:
    """Text of the tokens pushed so far, given out as soon as its characters are complete.

    Args:
        vocabulary: token bytes.
        hidden: ids that are not shown (control tokens).
        drop_space: drop one space at the very start, which SentencePiece models write before
            their first word.
    """

    def __init__(self, vocabulary: Vocabulary, hidden: frozenset[int], drop_space: bool) -> None:
        self._vocabulary = vocabulary
        self._hidden = hidden
        self._drop_space = drop_space
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """The characters this token completes; may be empty."""
        if token_id in self._hidden:
            return ""
        data = self._vocabulary.join([token_id])
        if self._drop_space and data:
            data = data.removeprefix(b" ")
            self._drop_space = False
        return self._decoder.decode(data)

    def flush(self) -> str:
        """What is left at the end: U+FFFD for a character that was never completed."""
        return self._decoder.decode(b"", final=True)
