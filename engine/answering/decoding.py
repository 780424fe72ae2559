"""Tokens of an answer, one after the other.

On a CPU: sample, run, repeat. On a GPU everything a step needs lives in device tensors, so a whole
decode step is one CUDA graph, one graph for each thing a step may do (see `Schedule`); the sampled
token feeds the next step on the device, and the host reads tokens one step behind. In a tiered
store layers take turns to select anew (`phases.py`), and the host makes room before each new page.
"""

from collections.abc import Generator, Iterator

import torch

from hipcli.engine.answering.decode_pass import DecodePass, DecodeStep, selects
from hipcli.engine.answering.drafting import Drafter
from hipcli.engine.answering.phases import Alike, Given, Phase, Phases, Staggered
from hipcli.engine.answering.sampler import Sampler
from hipcli.engine.answering.speculation import can_draft, generate_drafted
from hipcli.engine.forward.runner import Runner
from hipcli.engine.forward.step import StepInput
from hipcli.engine.passes import AnswerPass
from hipcli.engine.store.pages import PAGE_TOKENS, KVStore


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
    if store.backend != "cpu" and attention.graphs and _stays(store, attention, max_new_tokens):
        yield from DeviceDecoder(runner, store, attention).tokens(logits, sampler, max_new_tokens)
        return
    for count in range(1, max_new_tokens + 1):
        token = sampler.pick(logits)
        yield token
        if count < max_new_tokens:
            step = StepInput(store, runner.tables, attention, store.length)
            logits = runner.logits(torch.tensor([token]), step)[-1]


class DeviceDecoder:
    """Runs decode steps on a device.

    Args:
        runner: the model.
        store: holds the prompt; steps go on at `store.length`.
        attention: which keys the steps attend.
        graphs: capture steps in CUDA graphs; False runs them one launch at a time.
        staggered: layers take turns to select anew; None for what suits the store.

    Attributes:
        logits: fp32 [vocab_size] of the last step.
    """

    @torch.inference_mode()
    def __init__(
        self,
        runner: Runner,
        store: KVStore,
        attention: AnswerPass,
        *,
        graphs: bool = True,
        staggered: bool | None = None,
    ) -> None:
        self._runner = runner
        self._store = store
        self._graphs: dict[str, torch.cuda.CUDAGraph] | None = None
        if graphs and store.device.type == "cuda":
            self._graphs = {}
        self._seen: set[str] = set()
        self._position = self._summarised = store.length
        self._first = store.length
        if staggered is None:
            staggered = store.tiered and store.fetches_in_graphs
        self._staggered = staggered and selects(attention)
        # One step after the other: many graphs may use the same memory.
        shares = self._graphs is not None and self._staggered
        self._pool = torch.cuda.graph_pool_handle() if shares else None
        self._phases = _phases(attention, store, staggered=self._staggered)
        self._geometry = attention.method.geometry
        # Windows that lag behind are a page longer.
        local_tokens = _local_tokens(attention, store) + self._staggered * PAGE_TOKENS
        runner.tables.ensure(local_tokens)
        self._pass = DecodePass(attention, store, local_tokens, staggered=self._staggered)
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
        """What the last step did: the name of its `Phase`."""
        return self._pass.phase.name

    @property
    def attention(self) -> DecodePass:
        """Of its steps."""
        return self._pass

    @property
    def state(self) -> DecodeStep:
        """Of the next step."""
        return self._step

    @torch.inference_mode()
    def feed(self, token: torch.Tensor) -> None:
        """Token id, int64 [1], of the next step."""
        self._ids.copy_(token.view(1, 1))

    @torch.inference_mode()
    def step(self) -> None:
        """Run the token fed; `logits` are those of the next one. Does not wait for the device."""
        if self._position >= self._store.capacity_tokens:
            raise ValueError(f"the store is full: {self._store.capacity_tokens} tokens")
        if self._store.tiered:
            self._reserve()
        window_start = self._geometry.window_start(self._position)
        phase = self._pass.phase = self._phases.next(self._position, window_start)
        if phase.name == "pages" and not self._staggered:
            self._catch_up()
        if self._graphs is None or not self._ready(phase):
            # The first step of a kind warms up what a capture must not do: compiling, loading.
            self._seen.add(phase.name)
            self._run()
        else:
            if phase.name not in self._graphs:
                self._graphs[phase.name] = self._capture()
            self._graphs[phase.name].replay()
        self._position += 1
        self._store.length = self._position
        if self._position % PAGE_TOKENS == 0:
            self._end_page()

    def _ready(self, phase: Phase) -> bool:
        """A graph can hold the step."""
        if phase.fetches and self._store.tiered and not self._store.fetches_in_graphs:
            return False
        return phase.name in self._seen or phase.warmed_by in self._seen

    def _reserve(self) -> None:
        """Make room for the page that the step writes to."""
        if self._position != self._first and self._position % PAGE_TOKENS:
            return
        store, geometry = self._store, self._geometry
        end = min((self._position // PAGE_TOKENS + 1) * PAGE_TOKENS, store.capacity_tokens)
        lag = max(self._position - self._phases.lag_tokens, self._first)
        store.reserve(self._position, end, geometry.window_start(lag), geometry.sink_tokens)

    def _end_page(self) -> None:
        """The last step has filled a page."""
        store, end = self._store, self._position
        for layer in range(store.layout.num_layers):
            if self._staggered:
                store.summarise(layer, store.seqlen_k(end), PAGE_TOKENS)
            if store.tiered:
                store.written_through(layer, end - PAGE_TOKENS, end)

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
        with torch.cuda.graph(graph, self._pool, capture_error_mode="thread_local"):
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


def _phases(attention: AnswerPass, store: KVStore, *, staggered: bool) -> Phases:
    """When which layer selects or fetches."""
    layers = store.layout.num_layers
    if attention.pages is not None and store.tiered:
        return Given(layers)
    if not selects(attention):
        return Alike(None, layers)
    schedule = attention.method.schedule()
    return Staggered(schedule, layers) if staggered else Alike(schedule, layers)


def _stays(store: KVStore, attention: AnswerPass, max_new_tokens: int) -> bool:
    """As long as attention is dense, all that it attends stands on the device."""
    if not store.tiered:
        return True
    geometry = attention.method.geometry
    near = geometry.sink_tokens + geometry.window_tokens
    dense = max(geometry.dense_tokens, near) + 2 * PAGE_TOKENS
    start, end = store.length, min(store.length + max_new_tokens, dense)
    dense_now = geometry.window_start(start) == 0
    return not dense_now or geometry.kept_from(start, end, store.device_pages) == 0


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
