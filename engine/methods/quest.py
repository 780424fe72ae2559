"""Pages by the bound of their keys' box, nothing finer.

Each page of 64 tokens keeps the channel-wise minimum and maximum of its keys. The largest q.k that
such a box allows bounds the score of every key in the page; the pages with the highest bounds are
attended whole. The choice is made anew for every token that is generated, per KV head.

Source: Quest (arXiv 2406.10774, section 3). Where we differ: pages have 64 tokens instead of 16;
the query heads of a KV head share its pages (the paper has as many KV heads as query heads); keys
are kept un-rotated, so the query stands at one distance from all of them while bounds are computed,
and attended keys stand at packed positions; sinks and a window are always attended. The paper reads
the prompt densely and leaves the first two layers dense; beyond the trained window there is no
dense reading, so blocks of 64 queries select with the highest bound of any of their queries, in
every layer alike.
Cost: 2 vectors of every page and KV head for each query; 1/32 of the keys.
"""

from dataclasses import dataclass, field

import torch

from hipcli.engine.forward.step import Step, StepInput
from hipcli.engine.methods.base import Kernels
from hipcli.engine.methods.configs import QuestConfig
from hipcli.engine.methods.geometry import Geometry
from hipcli.engine.store.pages import PAGE_TOKENS
from hipcli.kernels.score_pages import score_pages
from hipcli.kernels.select_blocks import select_blocks


@dataclass(slots=True)
class QuestMethod(Kernels):
    """See the module. Nothing is kept between tokens."""

    config: QuestConfig = field(default_factory=QuestConfig)
    name: str = "quest"
    block_size_k: int = PAGE_TOKENS

    @property
    def geometry(self) -> Geometry:
        config = self.config
        return Geometry.covered(config.sink_tokens, config.window_tokens, config.budget_tokens)

    @property
    def token_pages(self) -> int:
        return self.config.budget_tokens // PAGE_TOKENS

    @property
    def token_blocks(self) -> int:
        return self.token_pages

    def _best_pages(
        self,
        layer: int,
        q: torch.Tensor,
        window_starts: torch.Tensor,
        step: Step,
        block_size_q: int,
    ) -> torch.Tensor:
        """Pages with the highest bounds, int32 [num_q_blocks, num_kv_heads, token_pages]."""
        distance = self.config.query_distance_tokens
        scores = score_pages(
            q,
            step.store.index[layer],
            window_starts,
            step.tables.first(distance + 1),
            distance,
            block_size_q,
            1,
            self.config.sink_tokens,
            backend=step.store.backend,
        )
        return select_blocks(scores, self.token_pages, backend=step.store.backend)

    def select_prefill(
        self, layer: int, q: torch.Tensor, window_starts: torch.Tensor, step: StepInput
    ) -> torch.Tensor:
        """See `Method.select_prefill`."""
        return self._best_pages(layer, q, window_starts, step, PAGE_TOKENS)

    def select_question(
        self, layer: int, q: torch.Tensor, window_starts: torch.Tensor, step: StepInput
    ) -> torch.Tensor:
        """See `Method.select_question`: as tokens of an answer are selected for."""
        return self._best_pages(layer, q, window_starts, step, 1)

    def choose_pages(
        self, layer: int, q: torch.Tensor, window_starts: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """See `Method.choose_pages`."""
        return self._best_pages(layer, q, window_starts, step, 1)

    def choose_blocks(
        self, layer: int, q: torch.Tensor, pages: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """See `Method.choose_blocks`: the pages themselves."""
        return pages

    def select_token(self, layer: int, q: torch.Tensor, step: StepInput) -> torch.Tensor | None:
        """See `Method.select_token`."""
        window_start = self.geometry.window_start(step.start)
        if window_start == 0:
            return None
        starts = step.store.filled(window_start)
        return self._best_pages(layer, q.unsqueeze(0), starts, step, 1)[0]
