"""One text as the only document of a prompt, with the place of each of its tokens.

For `hip eval`, whose needles must be found again among the tokens of the product's own prompt.
"""

from collections.abc import Sequence

import numpy as np

from hipcli.documents import Corpus
from hipcli.engine.evaluation.placing import Placed
from hipcli.prompts.assemble import (
    Between,
    ChatScaffold,
    EncodedText,
    PromptTokenizer,
    assemble,
    question_ids,
    question_range,
)


class TextPrompts:
    """Prompts about a single text; see `hipcli.engine.evaluation.composing.Prompts`.

    Args:
        tokenizer: the model's.
    """

    def __init__(self, tokenizer: PromptTokenizer) -> None:
        self.tokenizer = tokenizer

    def context(self, text: str) -> Placed:
        """The text as a document named text.txt, as `hip ask` would have it."""
        witness = _Witness(self.tokenizer, text)
        context = assemble(Corpus.of_text("text.txt", text), witness, None)
        (span,) = context.spans
        prefix = context.documents[0].start_token
        return Placed(context.ids, prefix, span.start_token, witness.offsets)

    def question(self, question: str) -> tuple[list[int], tuple[int, int]]:
        """Ids of the question, and which of them are its own words."""
        ids = question_ids(question, self.tokenizer, None)
        return ids, question_range(question, self.tokenizer)


class _Witness:
    """A tokenizer that remembers where the tokens of one text stand."""

    def __init__(self, tokenizer: PromptTokenizer, text: str) -> None:
        self._tokenizer = tokenizer
        self._text = text
        self.offsets = np.empty((0, 2), dtype=np.int32)

    def encode(self, text: str) -> EncodedText:
        encoded = self._tokenizer.encode(text)
        if text == self._text:
            self.offsets = encoded.offsets
        return encoded

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids)

    def scaffold(self, system: str | None) -> ChatScaffold:
        return self._tokenizer.scaffold(system)

    def turns(self, count: int) -> Sequence[Between]:
        return self._tokenizer.turns(count)
