"""From a context in the store and a question to the tokens of an answer.

attend: the question's tokens, and the answer's, select their own keys per layer and KV head.
vote: while the question passes, the heads vote for pages (`vote.py`).
share: the question runs again with the voted pages as the selection of every layer and head.
reread: the voted pages and the question are run as a short fresh prompt, densely, inside the
trained window.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from hipcli.engine.decoding import generate
from hipcli.engine.events import Evidence
from hipcli.engine.methods.base import Method
from hipcli.engine.methods.dense import DenseMethod
from hipcli.engine.passes import AnswerPass, PrefillPass, QuestionPass
from hipcli.engine.request import AskRequest
from hipcli.engine.runner import Runner
from hipcli.engine.sampler import Sampler
from hipcli.engine.step import LayerAttention, StepInput
from hipcli.engine.store.pages import PAGE_TOKENS, KVStore
from hipcli.engine.vote import Ballot

# How many passages are reported; each is a page, neighbours are not joined.
EVIDENCE_COUNT = 8

# Blocks of the exact selection for the question's tokens.
QUESTION_BLOCK_TOKENS = 16


@dataclass(slots=True)
class Answerer:
    """Answers one request.

    Args:
        runner: the model.
        method: the attention method the context was read with.
        store: holds the context.
        request: question and settings.
        budget_tokens: tokens of passages, or of each selection.
        vote_distance_tokens: distance between query and keys while voting.
        separator_ids: put between passages that are not neighbours when they are reread.
        stop_ids: tokens that end an answer.

    Attributes:
        mode: dense, attend, share or reread, once `start` has run.
        evidence: the pages with most votes.
    """

    runner: Runner
    method: Method
    store: KVStore
    request: AskRequest
    budget_tokens: int
    vote_distance_tokens: int
    separator_ids: list[int]
    stop_ids: frozenset[int]
    mode: str = ""
    evidence: tuple[Evidence, ...] = ()
    finish_reason: str = "length"

    def start(self) -> tuple[torch.Tensor, AnswerPass]:
        """Run the question: its vote, and what the mode asks for.

        Returns:
            logits fp32 [vocab_size] of the first token of the answer, and the attention to go on
            with; `store` holds the prompt.
        """
        context_tokens = len(self.request.context_ids)
        question = torch.tensor(self.request.question_ids)
        self.method.reset()
        ballot = Ballot(context_tokens, self.vote_distance_tokens)
        asking = QuestionPass(self.method, ballot, self.budget_tokens, QUESTION_BLOCK_TOKENS)
        logits = self._run(question, asking, context_tokens)
        self.evidence = ballot.evidence(self.request.prefix_tokens, EVIDENCE_COUNT)
        self.mode = self._resolve_mode(context_tokens + len(question))
        if self.mode in ("dense", "attend"):
            return logits, AnswerPass(self.method)
        pages = ballot.pages(self.request.prefix_tokens, self.budget_tokens)
        if self.mode == "share":
            self.store.truncate(context_tokens)
            answering = AnswerPass(self.method, pages)
            return self._run(question, answering, context_tokens), answering
        return self._reread(pages, question)

    def _resolve_mode(self, prompt_tokens: int) -> str:
        room = self.request.generation.max_new_tokens
        if self.method.geometry.window_start(prompt_tokens + room) == 0:
            return "dense"
        if self.request.answer != "auto":
            return self.request.answer
        return "reread" if self._reread_fits() else "share"

    def _reread_fits(self) -> bool:
        request = self.request
        prompt = request.prefix_tokens + self.budget_tokens + len(request.question_ids)
        room = request.generation.max_new_tokens
        return prompt + room <= self.runner.trained_tokens

    def _run(self, ids: torch.Tensor, attention: LayerAttention, start: int) -> torch.Tensor:
        step = StepInput(self.store, self.runner.tables, attention, start)
        return self.runner.logits(ids, step)[-1]

    def _reread(
        self, pages: torch.Tensor, question: torch.Tensor
    ) -> tuple[torch.Tensor, AnswerPass]:
        prompt = torch.from_numpy(self._passages(pages).astype(np.int64))
        room = len(prompt) + len(question) + self.request.generation.max_new_tokens
        dense = DenseMethod()
        self.store = self.runner.new_store(room)
        step = StepInput(self.store, self.runner.tables, PrefillPass(dense), 0)
        self.runner.forward(prompt, step)
        answering = AnswerPass(dense)
        return self._run(question, answering, len(prompt)), answering

    def _passages(self, pages: torch.Tensor) -> np.ndarray:
        """Scaffold and the given pages in order, with a separator where text is left out."""
        ids, prefix = self.request.context_ids, self.request.prefix_tokens
        separator = np.array(self.separator_ids, dtype=ids.dtype)
        parts, reached = [ids[:prefix]], prefix
        for page in pages.tolist():
            start = max(page * PAGE_TOKENS, prefix)
            if start > reached:
                parts.append(separator)
            reached = min((page + 1) * PAGE_TOKENS, len(ids))
            parts.append(ids[start:reached])
        if reached < len(ids):
            parts.append(separator)
        return np.concatenate(parts)

    def tokens(self) -> Iterator[int]:
        """Token ids of the answer, without the one that ends it; sets `finish_reason`."""
        generation = self.request.generation
        sampler = Sampler(generation.temperature, generation.seed)
        logits, attention = self.start()
        room = generation.max_new_tokens
        for token in generate(self.runner, self.store, attention, sampler, logits, room):
            if token in self.stop_ids:
                self.finish_reason = "stop"
                return
            yield token
