"""Packed copies of what a layer attends, kept while an answer is generated on a CPU.

Between two selections the steps of an answer attend the same sinks and blocks, and the window only
grows by the new tokens. So they are gathered and rotated once, in the packed frame, and each step
adds its keys. A GPU reads the pages themselves faster than it could keep such copies.

A view has room for tokens to come, hidden by a mask: products of the same shape again and again
are the fast ones, and a part of a buffer would have to be copied for them.
"""

from dataclasses import dataclass

import torch

from hipcli.engine.forward.step import StepInput
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
# Lengths of views are multiples of this.
_GRID = 64
# Passes of more tokens than this attend what is there, without a mask over the room behind it.
MASKED_TOKENS = 16


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """What all views of the same length have in common in one pass.

    Args:
        at: tokens in the views before the pass.
        room: tokens they have room for.
        tokens: of the pass.
        cos, sin: [tokens, 1, rotary_dim] of the pass's places, the first half of sin negated.
        mask: additive [group * tokens, room], or None for a long pass.
    """

    at: int
    room: int
    tokens: int
    cos: torch.Tensor
    sin: torch.Tensor
    mask: torch.Tensor | None

    @classmethod
    def of(cls, view: "PackedView", q: torch.Tensor, step: StepInput) -> "Frame":
        """The frame of a view for queries [T, num_heads, head_dim]."""
        tokens, at, room = q.shape[0], view.length, view.room
        cos, sin = step.tables.rows(at, at + tokens)
        cos, sin = cos.to(q.dtype), sin.to(q.dtype).clone()
        sin[:, : sin.shape[1] // 2].neg_()
        mask = None
        if tokens <= MASKED_TOKENS:
            last = torch.arange(at, at + tokens).unsqueeze(1)
            hidden = torch.arange(room) > last
            group = q.shape[1] // view.kv.shape[1]
            mask = torch.zeros(tokens, room, dtype=q.dtype).masked_fill_(hidden, -torch.inf)
            mask = mask.repeat(group, 1)
        return cls(at, room, tokens, cos.unsqueeze(1), sin.unsqueeze(1), mask)

    def serves(self, view: "PackedView", tokens: int) -> bool:
        """True if it is the frame of that view and so many tokens."""
        return (self.at, self.room, self.tokens) == (view.length, view.room, tokens)

    def rotate_(self, x: torch.Tensor) -> None:
        """Rotate [T, heads, head_dim] to the places of the pass, in place."""
        rotary_dim = self.cos.shape[-1]
        part = x[..., :rotary_dim] if rotary_dim < x.shape[-1] else x
        turned = part.roll(rotary_dim // 2, -1)
        part.mul_(self.cos).addcmul_(turned, self.sin)


@dataclass(slots=True)
class PackedView:
    """Keys and values of one layer in packed order, keys rotated.

    Args:
        kv: [2, num_kv_heads, room, head_dim]; the first `length` rows are in use, the others zero
            or left from tokens that were taken back.
        length: sinks + selected + window so far.
        begin: position after the last token that was gathered.
        end: position after the last token in it.
        window_start: first token of the window, 0 when everything is attended.
        blocks: the selection it was gathered for.
    """

    kv: torch.Tensor
    length: int
    begin: int
    end: int
    window_start: int
    blocks: torch.Tensor | None

    @property
    def room(self) -> int:
        """Tokens it has room for."""
        return self.kv.shape[2]

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
        dtype = step.store.layout.dtype
        near_k, near_v = key_range(kv, window_start, step.start, dtype)
        far_tokens = 0
        if window_start > 0:
            sinks = torch.arange(sink_tokens // block_size_k).expand(num_kv_heads, -1)
            rows = sinks if blocks is None else torch.cat((sinks, blocks), 1)
            far_tokens = rows.shape[1] * block_size_k
        length = far_tokens + near_k.shape[1]
        room = -(-(length + spare_tokens) // _GRID) * _GRID
        packed = torch.empty(2, num_kv_heads, room, head_dim, dtype=near_k.dtype)
        if far_tokens:
            packed[0, :, :far_tokens], packed[1, :, :far_tokens] = key_blocks(
                kv, rows, block_size_k, dtype
            )
        packed[0, :, far_tokens:length] = near_k
        packed[1, :, far_tokens:length] = near_v
        # What is hidden has weight 0, and 0 times whatever lay in memory may not be 0.
        packed[:, :, length:].zero_()
        rotate_(packed[0, :, :length], *step.tables.rows(0, length))
        return cls(packed, length, step.start, step.start, window_start, blocks)

    def fits(
        self, step: StepInput, tokens: int, window_start: int, blocks: torch.Tensor | None
    ) -> bool:
        """True if it holds exactly what `tokens` more queries attend, and has room for them.

        A pass may go back to a token behind the gathered ones: those after it are taken back.
        """
        back = self.end - step.start
        if back < 0 or step.start < self.begin or self.length - back + tokens > self.room:
            return False
        if self.window_start != window_start:
            return False
        if blocks is None or self.blocks is None:
            same = blocks is self.blocks
        else:
            same = blocks is self.blocks or torch.equal(blocks, self.blocks)
        if same:
            self.length, self.end = self.length - back, step.start
        return same

    def attend(self, q: torch.Tensor, step: StepInput, frame: Frame) -> torch.Tensor:
        """Take in the tokens of the pass, then attend with their queries.

        Args:
            q: [T, num_heads, head_dim], un-rotated.
            step: the pass; the keys and values of its T tokens are in the store and in `written`.
            frame: of this view, see `Frame.serves`.

        Returns:
            [T, num_heads, head_dim].
        """
        tokens, num_heads, head_dim = q.shape
        num_kv_heads = self.kv.shape[1]
        joined = step.joined
        if joined is None:
            assert step.written is not None, "keys are stored before they are attended"
            joined = torch.cat((q, *step.written), 1)
        # Queries and keys are rotated at once; the store has its un-rotated copy of the keys.
        frame.rotate_(joined[:, : num_heads + num_kv_heads])
        step.joined = None
        at, length = self.length, self.length + tokens
        new = joined[:, num_heads:].unflatten(1, (2, num_kv_heads))
        self.kv[:, :, at:length] = new.permute(1, 2, 0, 3)
        self.length, self.end = length, step.start + tokens
        q = joined[:, :num_heads]
        if tokens == 1:
            rows = q.view(num_kv_heads, num_heads // num_kv_heads, head_dim)
        else:
            rows = fold_heads(q, num_kv_heads)
        out = self._attend_rows(rows, step.softmax_scale, frame)
        return out.view(1, num_heads, head_dim) if tokens == 1 else unfold_heads(out, tokens)

    def _attend_rows(self, rows: torch.Tensor, scale: float, frame: Frame) -> torch.Tensor:
        """Folded rows [num_kv_heads, group * T, head_dim] of rotated queries -> the same."""
        keys, values = self.kv[0], self.kv[1]
        if frame.mask is not None:
            scores = torch.baddbmm(frame.mask, rows, keys.transpose(1, 2), alpha=scale)
            return torch.bmm(torch.softmax(scores, -1), values)
        tail = causal_tail(frame.tokens, rows.shape[1] // frame.tokens, rows.dtype)
        keys, values = keys[:, : self.length], values[:, : self.length]
        return attend_rows(rows * scale, keys, values, tail, return_lse=False)[0]
