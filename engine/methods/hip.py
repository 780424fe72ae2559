"""The default method: hierarchical pruning of the context, after InfiniteHiP (arXiv 2502.08910).

Stage 1 bounds every page of 64 tokens from its summary; stage 2 scores the surviving pages exactly
in blocks of 16 tokens. Where we differ from the paper: bounds and exact scores instead of a
halving search over single representatives; one selection per KV head instead of one for all
heads; the query stands at `query_distance_tokens` from every key while selecting, instead of next
to the window; where queries are selected for one by one, scores are normalised per query head
before heads are compared.
While a document is read, queries are selected for in blocks of 64 and whole pages are taken, by
stage 1 alone; the tokens of a question, and of an answer, are selected for one by one.
"""

from dataclasses import dataclass, field

import torch

from hipcli.engine.forward.step import Step, StepInput
from hipcli.engine.methods.base import Kernels, Schedule
from hipcli.engine.methods.configs import EVERYTHING, HipConfig
from hipcli.engine.methods.geometry import Geometry
from hipcli.engine.methods.selection import (
    best_blocks,
    best_pages,
    only_from,
    shared_pages,
    within_reach,
)
from hipcli.engine.store.pages import PAGE_TOKENS
from hipcli.kernels.score_pages import score_pages
from hipcli.kernels.select_blocks import select_blocks
from hipcli.kernels.types import RopeTables

# Candidate pages that the tokens of a question share where they are not voted for.
QUESTION_PAGES = 128
# Of a question's scaffold only these, from its end, choose them.
LAST_TOKENS = 4


@dataclass(slots=True)
class _LayerCache:
    """What a layer selected last while decoding, and when."""

    schedule: Schedule
    pages: torch.Tensor | None = None
    blocks: torch.Tensor | None = None


@dataclass(slots=True)
class HipMethod(Kernels):
    """See the module. Holds the selections of one running answer; `reset` forgets them.

    Args:
        config: its settings; what they leave to the device is as on a GPU, see `HipConfig.on`.
        dense_floor_tokens: attention is dense at least up to here, whatever the settings say:
            where dense attention is the faster one on the device at hand.
    """

    config: HipConfig = field(default_factory=HipConfig)
    name: str = "hip"
    follows_votes: bool = True
    dense_floor_tokens: int = 0
    _cache: dict[int, _LayerCache] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.config = self.config.on("cuda")

    @property
    def geometry(self) -> Geometry:
        config = self.config
        sizes = config.sink_tokens, config.window_tokens
        least = Geometry.covered(*sizes, config.prefill_budget_tokens).dense_tokens
        return Geometry(*sizes, max(config.dense_tokens, least, self.dense_floor_tokens))

    @property
    def block_size_k(self) -> int:
        return self.config.block_size_k

    @property
    def token_pages(self) -> int:
        return self.config.candidate_tokens // PAGE_TOKENS

    @property
    def token_blocks(self) -> int:
        return self.config.budget_tokens // self.config.block_size_k

    def reset(self) -> None:
        """Forget what the last answer selected."""
        self._cache.clear()

    def schedule(self) -> Schedule:
        """See `Method.schedule`."""
        return Schedule(self.config.candidate_refresh_steps, self.config.block_refresh_steps)

    def _rope(self, step: Step) -> RopeTables:
        return step.tables.first(self.config.query_distance_tokens + 1)

    def select_prefill(
        self, layer: int, q: torch.Tensor, window_starts: torch.Tensor, step: StepInput
    ) -> torch.Tensor:
        """See `Method.select_prefill`."""
        config, backend = self.config, step.store.backend
        reach = config.prefill_reach_tokens
        index, first = within_reach(step.store.index[layer], window_starts, backend, reach)
        offset = first * PAGE_TOKENS
        starts = window_starts - offset if first else window_starts
        scores = score_pages(
            q,
            index,
            starts,
            self._rope(step),
            config.query_distance_tokens,
            PAGE_TOKENS,
            min(config.query_stride, PAGE_TOKENS),
            max(config.sink_tokens - offset, 0),
            backend=backend,
        )
        if reach < EVERYTHING:
            scores = only_from(scores, starts - reach)
        pages = select_blocks(scores, config.prefill_budget_tokens // PAGE_TOKENS, backend=backend)
        return torch.where(pages < 0, pages, pages + first) if first else pages

    def select_question(
        self, layer: int, q: torch.Tensor, window_starts: torch.Tensor, step: StepInput
    ) -> None:
        """A question is short: every key is scored exactly for it."""

    def choose_pages(
        self, layer: int, q: torch.Tensor, window_starts: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """See `Method.choose_pages`."""
        return best_pages(
            q,
            step.store.index[layer],
            window_starts,
            self._rope(step),
            self.config.query_distance_tokens,
            self.config.sink_tokens,
            self.token_pages,
            step.softmax_scale,
            backend=step.store.backend,
        )

    def choose_blocks(
        self, layer: int, q: torch.Tensor, pages: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """See `Method.choose_blocks`."""
        step.store.check_keys(layer, pages)
        return best_blocks(
            q,
            step.store.kv[layer],
            pages,
            self._rope(step),
            self.config.query_distance_tokens,
            self.block_size_k,
            self.token_blocks,
            step.softmax_scale,
            backend=step.store.backend,
        )

    def select_unvoted(
        self,
        layer: int,
        q: torch.Tensor,
        window_starts: torch.Tensor,
        step: StepInput,
        words: tuple[int, int],
    ) -> torch.Tensor:
        """See `Method.select_unvoted`.

        The asker's own words and the last tokens, which the answer begins behind, choose candidate
        pages together; the blocks among them every token chooses by itself.
        """
        config, store = self.config, step.store
        voices = torch.cat((q[slice(*words)], q[max(words[1], len(q) - LAST_TOKENS) :]))
        pages = shared_pages(
            voices,
            store.index[layer],
            self.geometry.window_start(step.start + len(q) - 1),
            self._rope(step),
            config.query_distance_tokens,
            config.sink_tokens,
            max(min(QUESTION_PAGES, self.token_pages), config.budget_tokens // PAGE_TOKENS),
            step.softmax_scale,
            backend=store.backend,
        )
        store.check_keys(layer, pages)
        if step.fetches:
            store.fetch(layer, pages)
        blocks = best_blocks(
            q,
            store.kv[layer],
            pages.expand(len(q), -1, -1).contiguous(),
            self._rope(step),
            config.query_distance_tokens,
            self.block_size_k,
            min(self.token_blocks, pages.shape[2] * PAGE_TOKENS // self.block_size_k),
            step.softmax_scale,
            backend=store.backend,
        )
        # The first tokens of the question may have in their window what is selected for the last.
        inside = blocks * self.block_size_k < window_starts[:, None, None]
        return blocks.masked_fill(~inside, -1)

    def select_token(self, layer: int, q: torch.Tensor, step: StepInput) -> torch.Tensor | None:
        """See `Method.select_token`."""
        window_start = self.geometry.window_start(step.start)
        if window_start == 0:
            return None
        cache = self._cache.setdefault(layer, _LayerCache(self.schedule()))
        what = cache.schedule.next(step.start, window_start)
        query = q.unsqueeze(0)
        if what == "pages":
            starts = step.store.filled(window_start)
            cache.pages = self.choose_pages(layer, query, starts, step)
        if what != "keep" and cache.pages is not None:
            if step.fetches:
                step.store.fetch(layer, cache.pages)
            cache.blocks = self.choose_blocks(layer, query, cache.pages, step)[0]
        return cache.blocks
