"""Tokens of an answer, one after the other.

On a CPU: sample, run, repeat. On a GPU everything a step needs lives in device tensors, so a whole
decode step is one CUDA graph, one graph for each thing a step may do (see `Schedule`); the sampled
token feeds the next step on the device, and the host reads tokens one step behind.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass

import torch

from hipcli.engine.answering.drafting import Drafter
from hipcli.engine.answering.sampler import Sampler
from hipcli.engine.answering.speculation import can_draft, generate_drafted
from hipcli.engine.forward.rope import RopeTables
from hipcli.engine.forward.runner import Runner
from hipcli.engine.forward.step import StepInput
from hipcli.engine.methods.base import no_blocks
from hipcli.engine.passes import AnswerPass
from hipcli.engine.passes.given import GivenBlocks
from hipcli.engine.store.pages import PAGE_TOKENS, KVStore
from hipcli.kernels.sparse_decode import sparse_decode
from hipcli.kernels.types import SparsePlan


def generate(
    runner: Runner,
    store: KVStore,
    attention: AnswerPass,
    sampler: Sampler,
    logits: torch.Tensor,
    max_new_tokens: int,
    drafter: Drafter | None = None,
) -> Generator[int, None, None]:
    """Token ids of an answer.

    Args:
        runner: the model.
        store: holds the prompt. When a token is handed out, `store.length` counts the tokens
            before it.
        attention: which keys the answer attends.
        sampler: picks tokens.
        logits: fp32 [vocab_size] of the first token.
        max_new_tokens: how many.
        drafter: guesses tokens to be checked several at once, on a GPU without its graphs; None
            guesses none. The tokens are the same either way.
    """
    if drafter is not None and can_draft(store):
        yield from generate_drafted(
            runner, store, attention, sampler, logits, max_new_tokens, drafter
        )
        return
    if store.backend != "cpu" and attention.graphs:
        yield from DeviceDecoder(runner, store, attention).tokens(logits, sampler, max_new_tokens)
        return
    for count in range(1, max_new_tokens + 1):
        token = sampler.pick(logits)
        yield token
        if count < max_new_tokens:
            step = StepInput(store, runner.tables, attention, store.length)
            logits = runner.logits(torch.tensor([token]), step)[-1]


@dataclass(slots=True)
class DecodeStep:
    """State of one decode step, in tensors whose addresses never change; a `StepInput` otherwise.

    Args:
        store: keys and values.
        tables: the model's RoPE tables.
        attention: the `DecodePass`.
        position: int64 [1], of the step's token.
        seqlen_k: int32 [1], tokens with it.
        window_starts: int32 [1], first token of its window.
        rows: int64 [2 * num_kv_heads], where its keys and values go (`KVStore.rows_of`).
        softmax_scale: filled in by the model's attention module.
    """

    store: KVStore
    tables: RopeTables
    attention: "DecodePass"
    position: torch.Tensor
    seqlen_k: torch.Tensor
    window_starts: torch.Tensor
    rows: torch.Tensor
    softmax_scale: float = 1.0

    def begin(self) -> None:
        """Derive everything from `position`, on the device."""
        self.seqlen_k.copy_(self.position + 1)
        geometry = self.attention.answer.method.geometry
        self.window_starts.copy_(geometry.window_starts_at(self.position))
        self.rows.copy_(self.store.rows_of(self.position))

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Put keys and values of the step's token, [1, num_kv_heads, head_dim], in the store."""
        self.store.append_at(layer, self.rows, self.seqlen_k, k, v)


class DecodePass:
    """The attention of decode steps: blocks of every layer in buffers that a step may refresh.

    Args:
        answer: given pages, or the method that selects.
        store: keys and values.
        local_tokens: most keys a step attends.

    Attributes:
        what: what the next step does, as `Schedule.next` says.
    """

    def __init__(self, answer: AnswerPass, store: KVStore, local_tokens: int) -> None:
        self.answer = answer
        self.what = "keep"
        self._local_tokens = local_tokens
        method, num_kv_heads = answer.method, store.layout.num_kv_heads
        self.selects = answer.pages is None and method.token_blocks > 0
        self._pages: list[torch.Tensor] = []
        self._blocks: list[torch.Tensor] = []
        self._given: GivenBlocks | None = None
        if answer.given is not None:
            geometry = method.geometry
            start = geometry.first_window_start(store.length)
            self._given = GivenBlocks(answer.given, start, geometry.sink_tokens, num_kv_heads)
        elif self.selects:
            for _ in range(store.layout.num_layers):
                self._pages.append(_no_plan(num_kv_heads, method.token_pages, store))
                self._blocks.append(_no_plan(num_kv_heads, method.token_blocks, store))

    def begin(self, step: DecodeStep) -> None:
        """Arrange given pages for the window at hand."""
        if self._given is not None:
            self._given.begin(step.window_starts)

    def attend(self, layer: int, q: torch.Tensor, step: DecodeStep) -> torch.Tensor:
        """See `LayerAttention.attend`; q has one token."""
        store, method = step.store, self.answer.method
        if self.selects and self.what == "pages":
            store.summarise(layer, step.seqlen_k, PAGE_TOKENS)
            self._pages[layer].copy_(method.choose_pages(layer, q, step.window_starts, step))
        if self.selects and self.what != "keep":
            chosen = method.choose_blocks(layer, q, self._pages[layer], step)
            self._blocks[layer].copy_(chosen)
        plan = SparsePlan(
            self._layer_blocks(layer, step),
            step.window_starts if self._given is None else self._given.near_starts,
            1,
            self.answer.block_size_k,
            method.geometry.sink_tokens,
            self._local_tokens,
        )
        return sparse_decode(
            q,
            store.kv[layer],
            plan,
            step.tables.first(self._local_tokens),
            step.seqlen_k,
            step.softmax_scale,
            backend=store.backend,
        )[0]

    def _layer_blocks(self, layer: int, step: DecodeStep) -> torch.Tensor:
        if self._given is not None:
            return self._given.blocks
        return self._blocks[layer] if self.selects else no_blocks(1, step)


class DeviceDecoder:
    """Runs decode steps on a device.

    Args:
        runner: the model.
        store: holds the prompt; steps go on at `store.length`.
        attention: which keys the steps attend.
        graphs: capture steps in CUDA graphs; False runs them one launch at a time.

    Attributes:
        logits: fp32 [vocab_size] of the last step.
    """

    @torch.inference_mode()
    def __init__(
        self, runner: Runner, store: KVStore, attention: AnswerPass, *, graphs: bool = True
    ) -> None:
        self._runner = runner
        self._store = store
        self._graphs: dict[str, torch.cuda.CUDAGraph] | None = None
        if graphs and store.device.type == "cuda":
            self._graphs = {}
        self._seen: set[str] = set()
        self._position = self._summarised = store.length
        self._schedule = attention.method.schedule()
        self._geometry = attention.method.geometry
        local_tokens = _local_tokens(attention, store)
        runner.tables.ensure(local_tokens)
        self._pass = DecodePass(attention, store, local_tokens)
        position = torch.full((1,), store.length, dtype=torch.int64, device=store.device)
        self._step = DecodeStep(
            store=store,
            tables=runner.tables,
            attention=self._pass,
            position=position,
            seqlen_k=store.filled(0),
            window_starts=store.filled(0),
            rows=store.rows_of(position),
        )
        self._ids = torch.zeros(1, 1, dtype=torch.int64, device=store.device)
        vocab_size = runner.model.config.vocab_size
        self.logits = torch.empty(vocab_size, dtype=torch.float32, device=store.device)

    @property
    def what(self) -> str:
        """What the last step did, as `Schedule.next` says."""
        return self._pass.what

    @torch.inference_mode()
    def feed(self, token: torch.Tensor) -> None:
        """Token id, int64 [1], of the next step."""
        self._ids.copy_(token.view(1, 1))

    @torch.inference_mode()
    def step(self) -> None:
        """Run the token fed; `logits` are those of the next one. Does not wait for the device."""
        if self._position >= self._store.capacity_tokens:
            raise ValueError(f"the store is full: {self._store.capacity_tokens} tokens")
        window_start = self._geometry.window_start(self._position)
        what = self._schedule.next(self._position, window_start) if self._pass.selects else "keep"
        if what == "pages":
            self._catch_up()
        self._pass.what = what
        if self._graphs is None or what not in self._seen:
            # The first step of a kind warms up what a capture must not do: compiling, loading.
            self._seen.add(what)
            self._run()
        else:
            if what not in self._graphs:
                self._graphs[what] = self._capture()
            self._graphs[what].replay()
        self._position += 1
        self._store.length = self._position

    def _catch_up(self) -> None:
        """Summarise what earlier steps left to be summarised, but for the last page."""
        behind = self._position - self._summarised
        if behind >= PAGE_TOKENS:
            for layer in range(self._store.layout.num_layers):
                seqlen_k = self._store.seqlen_k(self._position)
                self._store.summarise(layer, seqlen_k, behind + PAGE_TOKENS)
        self._summarised = self._position

    def _run(self) -> None:
        self._step.begin()
        self._pass.begin(self._step)
        self.logits.copy_(self._runner.decode(self._ids, self._step))
        self._step.position.add_(1)

    def _capture(self) -> "torch.cuda.CUDAGraph":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._run()
        return graph

    def tokens(self, logits: torch.Tensor, sampler: Sampler, max_new_tokens: int) -> Iterator[int]:
        """See `generate`."""
        start = self._store.length
        mailbox = _Mailbox(self._store.device)
        self._sample(logits, sampler, mailbox)
        for count in range(1, max_new_tokens + 1):
            if count < max_new_tokens:
                # The next step starts before the host knows this token; a token that ends the
                # answer costs one step too many.
                self.step()
                self._sample(self.logits, sampler, mailbox)
            token = mailbox.take()
            self._store.length = start + count - 1
            yield token

    @torch.inference_mode()
    def _sample(self, logits: torch.Tensor, sampler: Sampler, mailbox: "_Mailbox") -> None:
        self.feed(sampler.draw(logits))
        mailbox.put(self._ids)


class _Mailbox:
    """Brings tokens from the device to the host in order, at most two under way."""

    def __init__(self, device: torch.device) -> None:
        cuda = device.type == "cuda"
        self._slots = [torch.empty(1, 1, dtype=torch.int64, pin_memory=cuda) for _ in range(2)]
        self._events = [torch.cuda.Event() for _ in range(2)] if cuda else []
        self._put = self._taken = 0

    def put(self, ids: torch.Tensor) -> None:
        """Send the token in `ids`, int64 [1, 1]."""
        slot = self._put % 2
        self._slots[slot].copy_(ids, non_blocking=True)
        if self._events:
            self._events[slot].record()
        self._put += 1

    def take(self) -> int:
        """Wait for the oldest token under way."""
        slot = self._taken % 2
        if self._events:
            self._events[slot].synchronize()
        self._taken += 1
        return int(self._slots[slot])


def _no_plan(num_kv_heads: int, count: int, store: KVStore) -> torch.Tensor:
    """A buffer of pages or blocks of one query, none chosen: int32 [1, num_kv_heads, count]."""
    return torch.full((1, num_kv_heads, count), -1, dtype=torch.int32, device=store.device)


def _local_tokens(attention: AnswerPass, store: KVStore) -> int:
    """Most keys that a step from `store.length` on attends."""
    method = attention.method
    geometry = method.geometry
    if attention.pages is None:
        selected = method.token_blocks * method.block_size_k
    else:
        selected = len(attention.pages) * PAGE_TOKENS
    near = geometry.sink_tokens + geometry.window_tokens + 2 * PAGE_TOKENS
    if geometry.window_start(store.length) > 0:
        return near + selected
    dense = min(store.capacity_tokens, geometry.dense_tokens + PAGE_TOKENS)
    return max(near + selected, dense)
