"""Selections over the pages of all ranks: the global best of what every rank offers.

Every rank scores its own pages and offers its best n; the n best of all offers are the n best of
all pages, and every rank finds them by itself from the same offers. Scores that are compared
between heads are shares of a head's attention, whose denominators need all pages: one number a row.
Ties go to the lower block, as on one rank.
"""

from dataclasses import dataclass

import torch

from hipcli.engine.distributed.group import Group
from hipcli.engine.distributed.store import ShardStore
from hipcli.engine.methods.selection import NO_BLOCK, head_queries, repeated
from hipcli.engine.store.layout import PAGE_TOKENS
from hipcli.kernels.score_blocks import score_blocks
from hipcli.kernels.score_pages import score_pages
from hipcli.kernels.select_blocks import select_blocks
from hipcli.kernels.types import PageIndex, RopeTables

SELECTION = "selection"


@dataclass(slots=True)
class Scoring:
    """How queries are scored.

    Args:
        group: all ranks.
        store: this rank's pages.
        rope: tables of more than `distance_tokens` rows.
        distance_tokens: distance between query and keys.
        softmax_scale: factor of q.k.
    """

    group: Group
    store: ShardStore
    rope: RopeTables
    distance_tokens: int
    softmax_scale: float

    def pages(
        self,
        layer: int,
        q: torch.Tensor,
        window_starts: torch.Tensor,
        between: tuple[int, int],
        sizes: tuple[int, int] = (1, 1),
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores of this rank's pages between sinks and windows, as `score_pages` has them.

        Args:
            layer: which layer.
            q: [N, num_heads, head_dim], un-rotated.
            window_starts: int32 [num_q_blocks].
            between: first token that is scored, and the last window start, known to the host: to
                ask the device would wait for it.
            sizes: queries a block, and how many are averaged into one.

        Returns:
            fp32 [num_q_blocks, num_kv_heads, n] and the pages, int64 [n] ascending.
        """
        ends = window_starts.long() // PAGE_TOKENS
        first, last = (tokens // PAGE_TOKENS for tokens in between)
        pages = self.store.own_between(first, last)
        num_kv_heads = self.store.layout.num_kv_heads
        if not len(pages):
            return torch.empty(len(ends), num_kv_heads, 0, device=q.device), pages
        summaries = self.store.summaries(layer, pages)
        everything = torch.full_like(window_starts, len(pages) * PAGE_TOKENS)
        scores = score_pages(
            q,
            PageIndex("bounds", summaries, None, PAGE_TOKENS),
            everything,
            self.rope,
            self.distance_tokens,
            *sizes,
            0,
            backend=self.store.backend,
        )
        beyond = pages >= ends[:, None]
        return scores.masked_fill(beyond[:, None], -torch.inf), pages

    def page_shares(
        self,
        layer: int,
        q: torch.Tensor,
        window_starts: torch.Tensor,
        between: tuple[int, int],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-shares that each head gives this rank's pages, among those of all ranks.

        Args:
            q: [N, num_heads, head_dim]; every query has its own window start.
            between: as of `pages`.

        Returns:
            fp32 [N * group, num_kv_heads, n], rows as in `head_queries`, and the pages.
        """
        num_kv_heads = self.store.layout.num_kv_heads
        starts = repeated(window_starts, q.shape[1] // num_kv_heads)
        scores, pages = self.pages(layer, head_queries(q, num_kv_heads), starts, between)
        return self._shares(scores), pages

    def best_blocks(
        self, layer: int, q: torch.Tensor, pages: torch.Tensor, block_size_k: int, num_blocks: int
    ) -> torch.Tensor:
        """Blocks with the highest exact scores inside candidate pages, as on one rank.

        Args:
            layer: which layer.
            q: [N, num_heads, head_dim], un-rotated.
            pages: int32 [N, num_kv_heads, c] of all ranks, ascending, -1 for the unused tail.
            block_size_k: tokens of a block.
            num_blocks: most blocks of a query and KV head.

        Returns:
            int32 [N, num_kv_heads, num_blocks], ascending, -1 for the unused tail.
        """
        mine = self.store.owned(pages)
        here = pages.masked_fill(~mine, NO_BLOCK).sort().values
        if q.device.type == "cpu":
            # A GPU skips what is unused, and to ask how much that is would wait for it.
            here = here[..., : int(mine.sum(-1).max())]
        here = here.masked_fill(here == NO_BLOCK, -1).contiguous()
        per_page = PAGE_TOKENS // block_size_k
        heads = q.shape[1] // self.store.layout.num_kv_heads
        scores = torch.empty(len(q) * heads, pages.shape[1], 0, device=q.device)
        if here.shape[2]:
            self.store.check_keys(layer, here)
            scores = score_blocks(
                head_queries(q, pages.shape[1]),
                self.store.scored_kv(layer),
                repeated(here, heads),
                self.rope,
                self.distance_tokens,
                1,
                block_size_k,
                1,
                backend=self.store.backend,
            )
        shares = self._shares(scores).unflatten(0, (-1, heads)).amax(1)
        inside = torch.arange(per_page, device=q.device)
        blocks = (here.long()[..., None] * per_page + inside).flatten(2)
        count = min(num_blocks, pages.shape[2] * per_page)
        found = self.best(shares, blocks, count)
        return torch.nn.functional.pad(found, (0, num_blocks - count), value=-1)

    def _shares(self, scores: torch.Tensor) -> torch.Tensor:
        """Logarithms of shares fp32 [rows, num_kv_heads, n] among the candidates of all ranks."""
        scores = scores * self.softmax_scale
        total = self.total(scores)
        return scores - total.unsqueeze(-1)

    def total(self, scores: torch.Tensor) -> torch.Tensor:
        """Log-sum-exp over the last dimension of all ranks, [...] of [..., n]."""
        return torch.logsumexp(self.group.gather(scores.logsumexp(-1), SELECTION), 0)

    def best(self, scores: torch.Tensor, blocks: torch.Tensor, count: int) -> torch.Tensor:
        """The blocks with the highest scores of all ranks.

        Args:
            scores: fp32 [rows, num_kv_heads, n] of this rank's blocks; those of -inf and NaN are
                never chosen.
            blocks: int64 [n] or [rows, num_kv_heads, n], which blocks they are, ascending.
            count: most blocks of a row.

        Returns:
            int32 [rows, num_kv_heads, count], ascending, -1 for the unused tail.
        """
        return best_of_all(self.group, scores, blocks, count, self.store.backend)


def best_of_all(
    group: Group, scores: torch.Tensor, blocks: torch.Tensor, count: int, backend: str
) -> torch.Tensor:
    """See `Scoring.best`."""
    offered = _offer(scores, blocks, count, backend)
    if group.size == 1:
        return offered[1]
    # Both in one message: scores as the integers of their bits.
    gathered = group.gather(torch.stack((offered[0].view(torch.int32), offered[1])), SELECTION)
    values, names = gathered.transpose(0, 1).movedim(1, -2).flatten(-2)
    # In the order of the blocks, so that the lower one wins among equals.
    order = names.masked_fill(names < 0, NO_BLOCK).argsort(-1)
    values, names = values.view(torch.float32).gather(-1, order), names.gather(-1, order)
    places = select_blocks(values.contiguous(), count, backend=backend)
    chosen = names.gather(-1, places.clamp(min=0).long())
    return chosen.masked_fill(places < 0, -1)


def _offer(
    scores: torch.Tensor, blocks: torch.Tensor, count: int, backend: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's best: scores fp32 and blocks int32, [rows, num_kv_heads, count] each."""
    if not scores.shape[2]:
        shape = (*scores.shape[:2], count)
        names = torch.full(shape, -1, dtype=torch.int32, device=scores.device)
        return torch.full(shape, -torch.inf, device=scores.device), names
    places = select_blocks(scores.contiguous(), count, backend=backend)
    at, unused = places.clamp(min=0).long(), places < 0
    values = scores.gather(-1, at).masked_fill(unused, -torch.inf)
    names = blocks.expand(scores.shape).gather(-1, at).int().masked_fill(unused, -1)
    return values, names
