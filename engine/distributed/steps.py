"""Steps of an answer on one rank of several GPUs, held in CUDA graphs, their exchanges included.

Where a step's token stands the device alone knows. All else is the same for the steps of one page:
whose page it is, the window, given pages, and which pages can be selected. So a graph, one for each
thing a step may do, serves until the page is full. The step that fills it runs as ever. All ranks
are told the same, so all of them hold the same steps.
"""

import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from hipcli.engine.distributed.attending import ShardStep
from hipcli.engine.distributed.passes import ShardAnswer
from hipcli.engine.forward.runner import Runner
from hipcli.engine.store.layout import PAGE_TOKENS


@dataclass(slots=True, kw_only=True)
class HeldStep(ShardStep):
    """A step in tensors whose addresses never change; `start` is the last token of its page.

    Args:
        position: int64 [1], of the step's token.
        tokens_k: int32 [1], tokens with it.
        tokens_here: int32 [1], the same as the slots of the page's owner count.
        rows: int64 [2 * num_kv_heads], where its keys and values go there.
        shift: from a position to what the owner's slots count; None on other ranks.
    """

    position: torch.Tensor
    tokens_k: torch.Tensor
    tokens_here: torch.Tensor
    rows: torch.Tensor
    shift: int | None = None

    def begin(self) -> None:
        """Derive everything from `position`, on the device."""
        self.tokens_k.copy_(self.position + 1)
        if self.shift is not None:
            here = self.position + self.shift
            self.tokens_here.copy_(here + 1)
            self.rows.copy_(self.store.rows_of(here))

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Put keys and values of the step's token, [1, num_kv_heads, head_dim], in the store."""
        if self.shift is not None:
            self.store.append_at(layer, self.rows, self.tokens_here, k, v)

    def seqlen_k(self) -> torch.Tensor:
        """See `ShardStep`."""
        return self.tokens_k


class HeldSteps:
    """The steps of one answer.

    Args:
        runner: the model.
        blank: a step of this answer, whose tokens do not count.
    """

    @torch.inference_mode()
    def __init__(self, runner: Runner, blank: ShardStep) -> None:
        assert isinstance(blank.attention, ShardAnswer)
        self._runner, self._attention, store = runner, blank.attention, blank.store
        position = torch.zeros(1, dtype=torch.int64, device=store.device)
        # A context that is not asked any more must go, whatever its last answer was.
        kept: Any = weakref.proxy(store)
        self._step = HeldStep(
            blank.group,
            kept,
            blank.tables,
            blank.attention,
            0,
            1,
            blank.softmax_scale,
            False,
            position=position,
            tokens_k=store.filled(0),
            tokens_here=store.filled(0),
            rows=store.rows_of(position),
        )
        self._ids = torch.zeros(1, dtype=torch.int64, device=store.device)
        vocab_size = runner.model.config.vocab_size
        self._logits = torch.empty(1, vocab_size, dtype=torch.float32, device=store.device)
        self._captures = store.device.type == "cuda"
        # One step after the other: graphs may use the same memory.
        self._pool: Any = None
        self._stream: Any = None
        self._keeper: Any = None
        if self._captures:
            self._pool = torch.cuda.graph_pool_handle()
            self._stream = torch.cuda.Stream(store.device)
            # A pool whose last graph is gone takes no other one.
            self._keeper = self._captured(self._ids.zero_)
        self._serves: tuple[int, ...] = ()
        self._seen: set[str] = set()
        self._graphs: dict[str, tuple[torch.cuda.CUDAGraph, Counter[str]]] = {}

    @staticmethod
    def takes(position: int) -> bool:
        """The step at `position` fills no page."""
        return position % PAGE_TOKENS < PAGE_TOKENS - 1

    @torch.inference_mode()
    def run(self, token: int, position: int) -> torch.Tensor | None:
        """Run a token; logits fp32 [1, vocab_size] on rank 0."""
        step, store = self._step, self._step.store
        self._turn_to(position // PAGE_TOKENS)
        step.position.fill_(position)
        self._ids.fill_(token)
        what = self._attention.chooser.what
        if not self._captures or what not in self._seen:
            # The first step of a kind in a page warms up what a capture must not do.
            self._seen.add(what)
            self._run()
        else:
            if what not in self._graphs:
                self._graphs[what] = self._capture()
            graph, sent_bytes = self._graphs[what]
            graph.replay()
            step.group.sent_bytes.update(sent_bytes)
        store.length = position + 1
        return self._logits.clone() if step.group.rank == 0 else None

    def _turn_to(self, page: int) -> None:
        """Forget graphs of another page, and of pages that stood elsewhere."""
        step, store = self._step, self._step.store
        # Tables that have grown lie elsewhere.
        serves = page, store.arrangement, step.tables.first(1).cos.data_ptr()
        if serves == self._serves:
            return
        self._serves = serves
        self._seen.clear()
        self._graphs.clear()
        step.start = (page + 1) * PAGE_TOKENS - 1
        slot = int(store.slots.of[page])
        step.shift = None if slot < 0 else (slot - page) * PAGE_TOKENS

    def _run(self) -> None:
        # What a `StepInput` is to a whole store.
        step: Any = self._step
        step.begin()
        if step.group.rank == 0:
            self._logits.copy_(self._runner.logits(self._ids, step))
        else:
            self._runner.forward(self._ids, step)

    def _capture(self) -> "tuple[torch.cuda.CUDAGraph, Counter[str]]":
        """A graph, and the bytes that each replay of it sends, by purpose."""
        sent_bytes = self._step.group.sent_bytes
        before = sent_bytes.copy()
        graph = self._captured(self._run)
        # Nothing was sent yet.
        each = sent_bytes - before
        sent_bytes.subtract(each)
        return graph, each

    def _captured(self, run: Callable[[], object]) -> "torch.cuda.CUDAGraph":
        # Not by `torch.cuda.graph`, which collects garbage and empties PyTorch's cache: there is a
        # capture for every few tokens.
        graph, here = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            graph.capture_begin(self._pool, capture_error_mode="thread_local")
            try:
                run()
            finally:
                graph.capture_end()
        here.wait_stream(self._stream)
        return graph
