"""The default method: hierarchical pruning of the context, after InfiniteHiP (arXiv 2502.08910).

Stage 1 bounds every page of 64 tokens from its summary; stage 2 scores the surviving pages exactly
in blocks of 16 tokens. Where we differ from the paper: bounds and exact scores instead of a
halving search over single representatives; one selection per KV head instead of one for all
heads; scores are normalised per query head before heads are compared; the query stands at
`query_distance_tokens` from every key while selecting, instead of next to the window.
While a document is read, queries are selected for in blocks of 64 and whole pages are taken; the
tokens of a question, and of an answer, are selected for one by one.
"""

from dataclasses import dataclass, field

import torch

from hipcli.engine.methods.base import Geometry
from hipcli.engine.methods.configs import HipConfig
from hipcli.engine.step import StepInput
from hipcli.engine.store.pages import PAGE_TOKENS
from hipcli.kernels.score_pages.cpu_impl import page_bounds
from hipcli.kernels.sparse_prefill.cpu_impl import fold_heads, rotate_


@dataclass(slots=True)
class _LayerCache:
    """What a layer selected last while decoding, and when."""

    window_start: int = -1
    candidates: torch.Tensor | None = None
    candidates_at: int = -1
    blocks: torch.Tensor | None = None
    blocks_at: int = -1


@dataclass(slots=True)
class HipMethod:
    """See the module. Holds the selections of one running answer; `reset` forgets them."""

    config: HipConfig = field(default_factory=HipConfig)
    name: str = "hip"
    _cache: dict[int, _LayerCache] = field(default_factory=dict)

    @property
    def geometry(self) -> Geometry:
        # Dense at least until the budget covers what lies between sinks and window, so that a
        # budget that covers the context is dense attention exactly.
        config = self.config
        covered = config.sink_tokens + config.window_tokens + config.prefill_budget_tokens
        dense = max(config.dense_tokens, covered)
        return Geometry(config.sink_tokens, config.window_tokens, dense)

    @property
    def block_size_k(self) -> int:
        return self.config.block_size_k

    def reset(self) -> None:
        """Forget what the last answer selected."""
        self._cache.clear()

    def select_prefill(
        self, layer: int, q: torch.Tensor, window_starts: list[int], step: StepInput
    ) -> torch.Tensor | None:
        if not any(window_starts):
            return None
        config = self.config
        last_page = max(window_starts) // PAGE_TOKENS
        first_page = config.sink_tokens // PAGE_TOKENS
        index = step.store.index[layer][first_page:last_page]
        rows = self._pooled_rows(q, window_starts, step)
        num_kv_heads, num_blocks, per_block, head_dim = rows.shape
        scores = page_bounds(rows.view(num_kv_heads, -1, head_dim), index)
        ends = torch.tensor(window_starts) // PAGE_TOKENS - first_page
        beyond = torch.arange(last_page - first_page) >= ends.unsqueeze(1)
        scores = scores.view(num_kv_heads, num_blocks, per_block, -1)
        scores = scores.masked_fill_(beyond[None, :, None, :], float("-inf"))
        # Dense blocks have no candidates at all; their rows are ignored by the kernel.
        best = torch.log_softmax(scores, dim=-1).amax(2).nan_to_num_(nan=0.0)
        chosen = best.topk(config.prefill_budget_tokens // PAGE_TOKENS, dim=-1).indices
        return (chosen + first_page).sort(-1).values.transpose(0, 1)

    def _pooled_rows(
        self, q: torch.Tensor, window_starts: list[int], step: StepInput
    ) -> torch.Tensor:
        """Averages of neighbouring queries: [num_kv_heads, num_q_blocks, rows, head_dim]."""
        length, num_heads, head_dim = q.shape
        num_kv_heads = step.store.layout.num_kv_heads
        group = num_heads // num_kv_heads
        stride = min(self.config.query_stride, PAGE_TOKENS)
        # A chunk that starts or ends inside a page repeats its edge query to fill the grid.
        before = step.start % PAGE_TOKENS
        after = len(window_starts) * PAGE_TOKENS - before - length
        if before or after:
            q = torch.cat((q[:1].expand(before, -1, -1), q, q[-1:].expand(after, -1, -1)))
        pooled = q.reshape(-1, stride, num_kv_heads, group, head_dim).float().mean(1).to(q.dtype)
        pooled = pooled.permute(1, 0, 2, 3)
        rows = pooled.reshape(num_kv_heads, len(window_starts), -1, head_dim).contiguous()
        return self._at_distance(rows, step)

    def _at_distance(self, rows: torch.Tensor, step: StepInput) -> torch.Tensor:
        """Scale and rotate queries in place, as if every key stood at the fixed distance."""
        distance = self.config.query_distance_tokens
        cos, sin = step.tables.rows(distance, distance + 1)
        return rotate_(rows.mul_(step.softmax_scale), cos, sin)

    def select_token(self, layer: int, q: torch.Tensor, step: StepInput) -> torch.Tensor | None:
        window_start = self.geometry.window_start(step.start)
        if window_start == 0:
            return None
        config = self.config
        cache = self._cache.setdefault(layer, _LayerCache())
        position = step.start
        rows = None
        if cache.window_start != window_start:
            # Tokens have left the window: they must become candidates at once.
            cache.window_start, cache.candidates = window_start, None
        if cache.candidates is None or self._due(
            cache.candidates_at, position, config.candidate_refresh_steps
        ):
            rows = self._token_rows(q, step)
            cache.candidates = self._candidates(layer, rows, window_start, step)
            cache.candidates_at = position
            cache.blocks = None
        if cache.blocks is None or self._due(cache.blocks_at, position, config.block_refresh_steps):
            rows = self._token_rows(q, step) if rows is None else rows
            cache.blocks = self._blocks(layer, rows, cache.candidates, step)
            cache.blocks_at = position
        return cache.blocks

    @staticmethod
    def _due(last: int, position: int, every: int) -> bool:
        return position < last or position - last >= every

    def _token_rows(self, q: torch.Tensor, step: StepInput) -> torch.Tensor:
        rows = fold_heads(q.unsqueeze(0), step.store.layout.num_kv_heads).clone()
        return self._at_distance(rows, step)

    def _candidates(
        self, layer: int, rows: torch.Tensor, window_start: int, step: StepInput
    ) -> torch.Tensor:
        """Stage 1: the pages with the highest bounds, int64 [num_kv_heads, n]."""
        first_page = self.config.sink_tokens // PAGE_TOKENS
        last_page = window_start // PAGE_TOKENS
        bounds = page_bounds(rows, step.store.index[layer][first_page:last_page])
        best = torch.log_softmax(bounds.float(), dim=-1).amax(1)
        count = min(self.config.candidate_tokens // PAGE_TOKENS, last_page - first_page)
        return best.topk(count, dim=-1).indices.sort(-1).values + first_page

    def _blocks(
        self, layer: int, rows: torch.Tensor, candidates: torch.Tensor, step: StepInput
    ) -> torch.Tensor:
        """Stage 2: the blocks with the highest exact scores, int64 [num_kv_heads, n]."""
        size = self.config.block_size_k
        per_page = PAGE_TOKENS // size
        num_kv_heads, num_candidates = candidates.shape
        heads = torch.arange(num_kv_heads).unsqueeze(1)
        keys = step.store.pages[layer][candidates, 0, heads]
        scores = torch.bmm(rows, keys.view(num_kv_heads, -1, rows.shape[-1]).transpose(1, 2))
        maxima = scores.float().view(*scores.shape[:2], -1, size).amax(-1)
        best = torch.log_softmax(maxima, dim=-1).amax(1)
        count = min(self.config.budget_tokens // size, best.shape[-1])
        chosen = best.topk(count, dim=-1).indices
        page = candidates.gather(1, chosen // per_page)
        return (page * per_page + chosen % per_page).sort(-1).values
