"""From a context in the store and a question to the tokens of an answer.

vote: while the question passes, the heads vote for pages (`vote.py`). In a second round the tokens
of the best passages vote for what they name: whoever carries the key is where it is, and pages that
have the words beside the question's count more (`word_match.py`).
attend: the question's tokens select keys per layer and KV head, half of them by themselves, half as
the heads have voted so far; the answer's tokens attend the voted pages, which stand right before
the question (`passes/given.py`). A method other than `hip` selects by itself throughout.
share: the question runs again with the voted pages as the selection of every layer and head.
reread: passages around the voted pages and the question are run as a short fresh prompt, densely,
inside the trained window.
"""

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
import torch

from hipcli.engine.answering.decoding import generate
from hipcli.engine.answering.drafting import Drafter, draft_tokens, evidence_texts
from hipcli.engine.answering.key_words import KeyWords, worth_a_look
from hipcli.engine.answering.passages import ROUND_PAGES, reread_budget_tokens, reread_prompt
from hipcli.engine.answering.sampler import Sampler
from hipcli.engine.answering.second_look import LookWeights, SecondLook
from hipcli.engine.answering.vote import Ballot
from hipcli.engine.answering.word_match import Reader, Spelling, coverage
from hipcli.engine.events import Evidence, Progress
from hipcli.engine.forward.runner import Runner
from hipcli.engine.forward.step import PassAttention, StepInput
from hipcli.engine.methods.base import Method
from hipcli.engine.methods.dense import DenseMethod
from hipcli.engine.passes import AnswerPass, Passes, PrefillPass
from hipcli.engine.reading.pace import Pace
from hipcli.engine.request import AskRequest
from hipcli.engine.store.pages import PAGE_TOKENS, KVStore, Tail

# Blocks of the exact selection for the question's tokens.
QUESTION_BLOCK_TOKENS = 16

# Of a question longer than this only the last tokens vote and are selected for one by one.
MAX_VOTING_TOKENS = 256
HEAD_CHUNK_TOKENS = 512

# A longer question is not run behind page after page.
MAX_LOOKING_TOKENS = 96
# Nor are pages looked at again where the best has e ** this times the votes of the next.
CLEAR_MARGIN = 2.0
# Nor where a page has so much of the question's words, rare ones counting more: then the question
# is in the text's words, which the votes follow better.
CLEAR_WORDS = 0.4

# Prompts up to this length are never reread, however short the model was trained.
MIN_SHORT_TOKENS = 2048


@dataclass(slots=True)
class Answerer:
    """Answers one request.

    Args:
        runner: the model.
        method: the attention method the context was read with.
        store: holds the context.
        request: question and settings.
        budget_tokens: tokens of the shared pages, or of each selection.
        vote_distance_tokens: distance between query and keys while voting.
        separator_ids: put between passages that are not neighbours when they are reread.
        stop_ids: tokens that end an answer.
        words: the words of the question, each with its spellings in tokens.
        reader: reads the passages of a round for words that lead on; None lets the heads alone.
        head_weights: what the vote of each head counts, as in `Ballot`.
        passes: makers of the passes that look at `store`.
        looks: how many of the best pages are looked at again; 0 leaves the order to the votes.
        look_weights: what such a look counts.

    Attributes:
        mode: dense, attend, share or reread, once `start` has run.
        evidence: the pages with most votes.
        reread_tokens: length of the short prompt before the question, if there was one.
        look: what a second look at the best pages came to; empty where there was none.
        drafter: guessed tokens of the answer, once `tokens` has begun; None where none are guessed.
    """

    runner: Runner
    method: Method
    store: KVStore
    request: AskRequest
    budget_tokens: int
    vote_distance_tokens: int
    separator_ids: list[int]
    stop_ids: frozenset[int]
    words: Sequence[tuple[Spelling, ...]] = ()
    reader: Reader | None = None
    head_weights: torch.Tensor | None = None
    passes: Passes = field(default_factory=Passes)
    looks: int = 0
    look_weights: LookWeights = field(default_factory=LookWeights)
    mode: str = ""
    evidence: tuple[Evidence, ...] = ()
    reread_tokens: int = 0
    finish_reason: str = "length"
    look: str = ""
    drafter: Drafter | None = None
    # Pages with most votes, the best one first.
    _ranking: list[int] = field(default_factory=list)
    # How many of the question's tokens `read_head` has read; None before it ran.
    _head: int | None = None

    def start(self) -> tuple[torch.Tensor, AnswerPass]:
        """Run the question: its vote, and what the mode asks for.

        Returns:
            logits fp32 [vocab_size] of the first token of the answer, and the attention to go on
            with; `store` holds the prompt.
        """
        question = torch.tensor(self.request.question_ids)
        for _ in self.read_head():
            pass
        assert self._head is not None, "read_head sets it"
        # What was read of a long question stays: only its last tokens share the voted pages.
        head, tail = self._head, self.store.tail()
        context_tokens = tail.length - head
        start, end = (max(0, token - head) for token in self.request.own_words)
        words = (start, end) if end > start else (0, len(question) - head)
        self.mode = self._resolve_mode(len(question) - head)
        if not self.request.rounds:
            asking = self.passes.unvoted(self.method, words)
            logits = self._run(question[head:], asking, tail.length)
            return logits, self.passes.answer(self.method)
        ballot = self._ballot(context_tokens, words)
        if self.words:
            ballot.coverage = coverage(self.request.context_ids, self.words)
        logits = self._ask(question[head:], ballot, tail)
        self._look_again(ballot, question[head:])
        self._later_rounds(ballot, question[head:], tail)
        self.evidence = ballot.evidence(*self.request.votable, self.request.evidence_count)
        self._ranking = ballot.ranking(*self.request.votable)
        if self.mode in ("dense", "attend"):
            if ballot.later:
                # The store holds the last round's passages; the question goes there again.
                again = self._ballot(context_tokens, words)
                again.coverage = ballot.coverage
                logits = self._ask(question[head:], again, tail)
            if self.mode == "dense" or not self.method.follows_votes:
                return logits, self.passes.answer(self.method)
            return logits, self._voted_pass(ballot)
        if self.mode == "reread":
            return self._reread(question)
        self.store.rewind(tail)
        answering = self._voted_pass(ballot)
        return self._run(question[head:], answering, tail.length), answering

    def _ballot(self, context_tokens: int, words: tuple[int, int]) -> Ballot:
        return Ballot(
            context_tokens,
            self.vote_distance_tokens,
            words,
            self.store.kept_pages,
            self.request.prefix_tokens,
            head_weights=self.head_weights,
        )

    def _voted_pass(self, ballot: Ballot) -> AnswerPass:
        """Attends the pages that won, which stand between the context and the question."""
        pages = ballot.pages(*self.request.votable, self.budget_tokens).to(self.store.device)
        end_page = ballot.context_tokens // PAGE_TOKENS
        answering: AnswerPass = self.passes.answer(self.method, pages, end_page)
        return answering

    def _ask(self, ids: torch.Tensor, ballot: Ballot, before: Tail) -> torch.Tensor:
        """Run tokens of a question behind what `before` ends with; logits of the next token."""
        self.store.rewind(before)
        budget_tokens, size = self.budget_tokens, QUESTION_BLOCK_TOKENS
        asking = self.passes.question(self.method, ballot, budget_tokens, size)
        return self._run(ids, asking, before.length)

    def _look_again(self, ballot: Ballot, question: torch.Tensor) -> None:
        """Weigh the best pages by what a second look at each of them sees, if it is worth its time.

        What is attended densely needs no pages.
        """
        if (
            self.mode == "dense"
            or len(question) > MAX_LOOKING_TOKENS
            or ballot.words_found() > CLEAR_WORDS
            or not self.looks
        ):
            return
        first, end = ballot.own_words
        best, others = self._worth_a_look(ballot, question[first:end].tolist())
        if len(best) < 2 or ballot.margin(best) > CLEAR_MARGIN:
            return
        pages = list(dict.fromkeys(itertools.chain.from_iterable(zip(best, others, strict=True))))
        pages = pages[: self.looks]
        began = time.perf_counter()
        look = SecondLook(
            self.runner, self.method, self.store, ballot.context_tokens, self.request.prefix_tokens
        )
        if self.look_weights.attention is None:
            question = question[:end]
        seen = look.at(pages, question, (first, end))
        ballot.look_again(pages, self.look_weights.scores(seen))
        (first_page,) = ballot.best(*self.request.votable, 1)
        self.look = (
            f"looked again at the {len(pages)} best pages,"
            f" {time.perf_counter() - began:.2f} s: the best one"
            f" {'stays' if first_page == pages[0] else 'is another'}"
        )

    def _worth_a_look(self, ballot: Ballot, own_ids: list[int]) -> tuple[list[int], list[int]]:
        """Pages of the store that may be best, by votes and by the votes of all words."""
        if not self.words or self.reader is None:
            best = ballot.best(*self.request.votable, self.looks)
            return best, best
        decode, kept = self.reader.decode, self.store.kept_pages
        keys = KeyWords.of(own_ids, decode, self.words, self.request.context_ids, kept)
        return worth_a_look(ballot, keys, self.request.votable, self.looks)

    def _later_rounds(self, ballot: Ballot, question: torch.Tensor, before: Tail) -> None:
        """Let the best pages of a round vote in the next one, the question as their scaffold."""
        ids, last, used = self.request.context_ids, ballot, set[int]()
        first, end = self.request.votable
        for _ in range(1, self.request.rounds):
            order = [page for page in last.order(first, end) if page not in used]
            named = [page for page in last.by_words(first, end) if page not in used]
            # What has the question's rare words may be overlooked by the heads.
            pages = sorted([*dict.fromkeys((*order[:1], *named[:1], *order))][:ROUND_PAGES])
            if not pages:
                return
            used.update(pages)
            borders = [
                (max(page * PAGE_TOKENS, first), min((page + 1) * PAGE_TOKENS, end))
                for page in pages
            ]
            tokens = np.concatenate([ids[start:stop] for start, stop in borders])
            last = self._ballot(ballot.context_tokens, (0, len(tokens)))
            last.passages, last.excluded = pages, sorted(used)
            if self.reader is not None:
                leading = self.reader.leading_words(ids, last.excluded, (first, end))
                last.coverage = coverage(ids, leading) if leading else None
            last.asked = (len(tokens) + ballot.own_words[0], len(tokens) + ballot.own_words[1])
            passages = torch.from_numpy(tokens.astype(np.int64))
            self._ask(torch.cat((passages, question)), last, before)
            ballot.later.append(last)

    def read_head(self) -> Iterator[Progress]:
        """Read what a long question has before its last tokens as a document is read.

        Only so many tokens are selected for one by one and vote: a pasted page would take minutes.
        `start` does it where nobody did before, without telling how far it has come.
        """
        if self._head is not None:
            return
        question = torch.tensor(self.request.question_ids)
        head = max(0, len(question) - MAX_VOTING_TOKENS)
        self.method.reset()
        base = self.store.length
        reading, pace = PrefillPass(self.method), Pace(0, head)
        for start in range(0, head, HEAD_CHUNK_TOKENS):
            end = min(start + HEAD_CHUNK_TOKENS, head)
            step = StepInput(self.store, self.runner.tables, reading, base + start)
            self.runner.forward(question[start:end], step)
            pace.advance(end)
            yield Progress("question", end, 0, head, pace.tokens_per_s, pace.eta_s)
        self._head = head

    def _resolve_mode(self, unread_tokens: int) -> str:
        """The mode for a question of which so many tokens are not in the store yet."""
        room = unread_tokens + self.request.generation.max_new_tokens
        # A pruned context has fewer tokens than its documents.
        dense = self.method.geometry.window_start(self.store.length + room) == 0
        prompt_tokens = len(self.request.context_ids) + len(self.request.question_ids)
        wanted = self.request.answer
        if wanted != "auto":
            return "dense" if dense and wanted in ("attend", "share") else wanted
        # Well inside the trained window a small model already loses what it reads (docs/log.md).
        short = prompt_tokens <= max(MIN_SHORT_TOKENS, self.runner.trained_tokens // 4)
        if (
            dense
            and not self.request.focus
            and (short or self.method.name == "dense" or not self._reread_fits())
        ):
            return "dense"
        return "reread" if self._reread_fits() else "share"

    def _reread_tokens(self) -> int:
        """Budget of reread passages; where the asker says which part to read, a larger one."""
        budget = reread_budget_tokens(self.runner.trained_tokens)
        return budget * 3 if self.request.focus else budget

    def _reread_fits(self) -> bool:
        request = self.request
        prompt = request.prefix_tokens + self._reread_tokens() + len(request.question_ids)
        # Room for a passage that overshoots, separators, and the answer.
        room = PAGE_TOKENS * 4 + request.generation.max_new_tokens
        return prompt + room <= self.runner.trained_tokens

    def _run(self, ids: torch.Tensor, attention: PassAttention, start: int) -> torch.Tensor:
        step = StepInput(self.store, self.runner.tables, attention, start)
        return self.runner.logits(ids, step)[-1]

    def _reread(self, question: torch.Tensor) -> tuple[torch.Tensor, AnswerPass]:
        ids = reread_prompt(
            self.request.context_ids,
            self.request.prefix_tokens,
            self._ranking,
            self.separator_ids,
            span=self.request.votable,
            budget_tokens=self._reread_tokens(),
        )
        self.reread_tokens = len(ids)
        prompt = torch.from_numpy(ids.astype(np.int64))
        room = len(prompt) + len(question) + self.request.generation.max_new_tokens
        dense = DenseMethod()
        self.store = self.runner.new_store(room)
        step = StepInput(self.store, self.runner.tables, PrefillPass(dense), 0)
        self.runner.forward(prompt, step)
        answering = AnswerPass(dense)
        return self._run(question, answering, len(prompt)), answering

    def tokens(self) -> Iterator[int]:
        """Token ids of the answer, without the one that ends it; sets `finish_reason`."""
        generation = self.request.generation
        sampler = Sampler(generation.temperature, generation.seed)
        logits, attention = self.start()
        room = generation.max_new_tokens
        self.drafter = self._new_drafter()
        told = generate(self.runner, self.store, attention, sampler, logits, room, self.drafter)
        with closing(told) as tokens:
            for token in tokens:
                if token in self.stop_ids:
                    self.finish_reason = "stop"
                    return
                yield token

    def _new_drafter(self) -> Drafter | None:
        most = draft_tokens(self.request.generation.draft_tokens, self.runner.backend)
        if not most:
            return None
        request = self.request
        drafter = Drafter(most, self.stop_ids)
        texts = evidence_texts(request.context_ids, self._ranking, request.votable)
        drafter.add((*texts, request.question_ids))
        return drafter
