"""Packed copies of what a layer attends, kept while tokens are generated one by one on a CPU.

Between two selections a decode step attends the same sinks and blocks, and its window only grows
by the new token. So they are gathered and rotated once, in the packed frame, and each step adds
one key. A GPU reads the pages themselves faster than it could keep such copies.
"""

from dataclasses import dataclass

import torch

from hipcli.engine.step import StepInput
from hipcli.kernels.cpu_common import (
    attend_rows,
    causal_tail,
    fold_heads,
    key_blocks,
    key_range,
    rotate_,
    unfold_heads,
)

# Room for tokens that arrive before the window moves on to the next page.
SPARE_TOKENS = 128


@dataclass(slots=True)
class PackedView:
    """Keys and values of one layer in packed order, keys rotated.

    Args:
        k, v: [num_kv_heads, room, head_dim]; the first `length` rows are in use.
        length: sinks + selected + window so far.
        end: position after the last token in it.
        window_start: first token of the window, 0 when everything is attended.
        blocks: the selection it was gathered for.
    """

    k: torch.Tensor
    v: torch.Tensor
    length: int
    end: int
    window_start: int
    blocks: torch.Tensor | None

    @classmethod
    def gather(
        cls,
        layer: int,
        step: StepInput,
        window_start: int,
        blocks: torch.Tensor | None,
        *,
        sink_tokens: int,
        block_size_k: int,
        spare_tokens: int = SPARE_TOKENS,
    ) -> "PackedView":
        """Copy what the queries from `step.start` on attend, up to that position.

        Args:
            layer: which layer.
            step: the pass; its store holds all tokens before `step.start`.
            window_start: first token of the window; 0 attends everything before it.
            blocks: [num_kv_heads, n] in units of `block_size_k`, none of them -1, or None.
            sink_tokens: attended in front of the blocks when window_start is above 0.
            block_size_k: tokens of a block.
            spare_tokens: room for tokens to come.
        """
        kv = step.store.kv[layer]
        num_kv_heads, head_dim = kv.k_pages.shape[1], kv.k_pages.shape[3]
        near_k, near_v = key_range(kv, window_start, step.start)
        far_tokens = 0
        if window_start > 0:
            sinks = torch.arange(sink_tokens // block_size_k).expand(num_kv_heads, -1)
            rows = sinks if blocks is None else torch.cat((sinks, blocks), 1)
            far_tokens = rows.shape[1] * block_size_k
        length = far_tokens + near_k.shape[1]
        k = torch.empty(num_kv_heads, length + spare_tokens, head_dim, dtype=near_k.dtype)
        v = torch.empty_like(k)
        if far_tokens:
            k[:, :far_tokens], v[:, :far_tokens] = key_blocks(kv, rows, block_size_k)
        k[:, far_tokens:length] = near_k
        v[:, far_tokens:length] = near_v
        rotate_(k[:, :length], *step.tables.rows(0, length))
        return cls(k, v, length, step.start, window_start, blocks)

    def fits(
        self, step: StepInput, tokens: int, window_start: int, blocks: torch.Tensor | None
    ) -> bool:
        """True if it holds exactly what `tokens` more queries attend, and has room for them."""
        if self.end != step.start or self.length + tokens > self.k.shape[1]:
            return False
        if self.window_start != window_start:
            return False
        if blocks is None or self.blocks is None:
            return blocks is self.blocks
        return blocks is self.blocks or torch.equal(blocks, self.blocks)

    def forget(self, end: int) -> None:
        """Leave out the tokens from position `end` on, which were the last to be taken in."""
        gone = max(0, self.end - end)
        self.length, self.end = self.length - gone, self.end - gone

    def attend(self, layer: int, q: torch.Tensor, step: StepInput) -> torch.Tensor:
        """Take in the tokens of the pass, then attend with their queries.

        Args:
            layer: which layer.
            q: [T, num_heads, head_dim], un-rotated.
            step: the pass; the keys and values of its T tokens are in the store.

        Returns:
            [T, num_heads, head_dim].
        """
        tokens, num_heads, head_dim = q.shape
        num_kv_heads = self.k.shape[0]
        new_k, new_v = key_range(step.store.kv[layer], self.end, step.start + tokens)
        at, new_length = self.length, self.length + new_k.shape[1]
        cos, sin = step.tables.rows(at, new_length)
        self.k[:, at:new_length] = rotate_(new_k, cos, sin)
        self.v[:, at:new_length] = new_v
        self.length, self.end = new_length, step.start + tokens
        rows = fold_heads(q, num_kv_heads) * step.softmax_scale
        group = num_heads // num_kv_heads
        by_head = rows.view(num_kv_heads, group, tokens, head_dim)
        rotate_(by_head, cos[-tokens:], sin[-tokens:])
        tail = causal_tail(tokens, group, q.dtype) if tokens > 1 else None
        keys, values = self.k[:, :new_length], self.v[:, :new_length]
        out, _ = attend_rows(rows, keys, values, tail, return_lse=False)
        return unfold_heads(out, tokens)
