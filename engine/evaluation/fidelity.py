"""How near a method comes to dense attention on any text, inside the trained window.

Dense attention always sees keys and values in the model's own dtype: what `--kv-dtype` costs is
part of a method's distance, and all of that of dense attention named as a method.

The text is read by dense attention and by every method side by side, slice by slice, so that only
one slice's logits are held at a time. Compared are the logits (perplexity, KL divergence, most
likely token) and, for one query of each slice, what the attended keys hold of the true attention:
its mass, and the keys with the highest scores. True scores are those of the method's own queries
and keys at their true positions. In the end the last tokens run once more, one by one, as an answer
is generated.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from hipcli.engine.device import check_kv_fits
from hipcli.engine.engine import Engine
from hipcli.engine.errors import DoesNotFitError
from hipcli.engine.evaluation.capture import Recorded, Watch
from hipcli.engine.forward.runner import Runner
from hipcli.engine.forward.step import PassAttention, StepInput
from hipcli.engine.methods import make_method
from hipcli.engine.methods.base import Method
from hipcli.engine.methods.dense import DenseMethod
from hipcli.engine.passes import AnswerPass, PrefillPass
from hipcli.engine.passes.tiers import check_method
from hipcli.engine.store.pages import PAGE_TOKENS, KVStore, Tail

# Tokens whose logits are held at once; a multiple of the page size.
SLICE_TOKENS = 128
# At most so many tokens at the end run one by one too, from the border of a page on: the keys of a
# half-read page depend on the tokens that were read with it.
ANSWER_TOKENS = 128


@dataclass(slots=True)
class Distance:
    """Sums over tokens of how far one model's logits are from another's.

    Attributes:
        tokens: how many were compared.
        nll, dense_nll: negative log-likelihood of the text in nats.
        kl: Kullback-Leibler divergence of the method's distribution from dense attention's.
        agreed: tokens whose most likely successor is the same.
    """

    tokens: int = 0
    nll: float = 0.0
    dense_nll: float = 0.0
    kl: float = 0.0
    agreed: int = 0

    def add(self, logits: torch.Tensor, dense: torch.Tensor, targets: torch.Tensor) -> None:
        """Count some tokens.

        Args:
            logits, dense: log-softmax fp32 [n, vocab_size] of method and dense attention.
            targets: int64 [n], the tokens that follow.
        """
        self.tokens += len(targets)
        rows = torch.arange(len(targets), device=targets.device)
        self.nll -= float(logits[rows, targets].sum())
        self.dense_nll -= float(dense[rows, targets].sum())
        self.kl += float((dense.exp() * (dense - logits)).sum())
        self.agreed += int((dense.argmax(-1) == logits.argmax(-1)).sum())

    def report(self) -> dict[str, float | int | None]:
        """Means per token; the ratio is that of the perplexities."""
        count = self.tokens
        if not count:
            return {"tokens": 0, "perplexity": None, "ratio": None, "kl": None, "top_1": None}
        return {
            "tokens": count,
            "perplexity": math.exp(self.nll / count),
            "ratio": math.exp((self.nll - self.dense_nll) / count),
            "kl": self.kl / count,
            "top_1": self.agreed / count,
        }


@dataclass(slots=True)
class _Reader:
    """One method reading the text."""

    name: str
    method: Method
    store: KVStore
    attention: PassAttention
    watch: Watch | None = None
    tail: Tail | None = None
    every: Distance = field(default_factory=Distance)
    sparse: Distance = field(default_factory=Distance)
    answering: Distance = field(default_factory=Distance)

    @classmethod
    def of(cls, name: str, method: Method, runner: Runner, tokens: int) -> "_Reader":
        recorded: Any = Recorded(method)
        watch = Watch(recorded, PrefillPass(recorded))
        store = runner.new_store(tokens)
        check_method(method, store)
        return cls(name, method, store, watch, watch)

    def logits(self, runner: Runner, ids: torch.Tensor, start: int) -> torch.Tensor:
        """Log-softmax fp32 [n, vocab_size] of the next tokens [start, start + n)."""
        step = StepInput(self.store, runner.tables, self.attention, start)
        return runner.logits(ids, step, keep=len(ids)).log_softmax(-1)

    def compare(
        self, logits: torch.Tensor, dense: torch.Tensor, targets: torch.Tensor, start: int
    ) -> None:
        """Count a slice: all of its tokens, and those that do not attend everything."""
        self.every.add(logits, dense, targets)
        geometry = self.method.geometry
        first = next(
            (n for n in range(len(targets)) if geometry.window_start(start + n) > 0), len(targets)
        )
        self.sparse.add(logits[first:], dense[first:], targets[first:])

    def answer(self, runner: Runner, ids: torch.Tensor, dense: torch.Tensor) -> None:
        """Run the last tokens as an answer: one by one, with selections of their own.

        Args:
            ids: int64 [N], of the whole text, which has been read.
            dense: log-softmax fp32 [n, vocab_size] for the n tokens before the last one.
        """
        last, first = len(ids) - 1, _answers_from(len(ids))
        if first == 0 or self.tail is None:
            return
        dense = dense[first - last :]
        self.method.reset()
        self.store.rewind(self.tail)
        between, start = ids[self.tail.length : first], self.tail.length
        if len(between):
            reading = PrefillPass(self.method)
            runner.forward(between, StepInput(self.store, runner.tables, reading, start))
        answering = AnswerPass(self.method)
        targets = ids.to(runner.device)
        for row, position in enumerate(range(first, last)):
            step = StepInput(self.store, runner.tables, answering, position)
            logits = runner.logits(ids[position : position + 1], step).log_softmax(-1)
            following = targets[position + 1 : position + 2]
            self.answering.add(logits, dense[row : row + 1], following)

    def report(self) -> dict[str, Any]:
        """What was measured, JSON-able."""
        captures = self.watch.captures if self.watch is not None else {}
        layers = [{"layer": n, **captures[n].report()} for n in sorted(captures)]
        means = {name: _mean([layer[name] for layer in layers]) for name in ("mass", "top_keys")}
        return {
            "method": self.name,
            "settings": asdict(self.method.config),
            "all": self.every.report(),
            "sparse": self.sparse.report(),
            "answering": self.answering.report(),
            **means,
            "layers": layers,
        }


def measure(
    runner: Runner, methods: Sequence[tuple[str, Method]], ids: torch.Tensor
) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Read a text by dense attention and by some methods, and compare.

    Args:
        runner: the model.
        methods: names and methods; each reads from the start, into a store of its own.
        ids: int64 [N], at most the trained length.

    Yields:
        After each slice the tokens read so far and a report for each method: `all` tokens, those
        that are `sparse` (that leave keys out), and per layer `mass` and `top_keys`. The last
        reports have also what the tokens at the end gave while `answering`.
    """
    dense = DenseMethod()
    reference = _Reader("dense", dense, _exact_store(runner, len(ids)), PrefillPass(dense))
    readers = [_Reader.of(name, method, runner, len(ids)) for name, method in methods]
    kept = torch.empty(0, device=runner.device)
    for start in range(0, len(ids), SLICE_TOKENS):
        part = ids[start : start + SLICE_TOKENS]
        targets = ids[start + 1 : start + 1 + len(part)].to(runner.device)
        expected = reference.logits(runner, part, start)[: len(targets)]
        for reader in readers:
            if start <= _answers_from(len(ids)) < start + len(part):
                reader.tail = reader.store.tail()
            logits = reader.logits(runner, part, start)[: len(targets)]
            reader.compare(logits, expected, targets, start)
        kept = torch.cat((kept, expected)) if len(kept) else expected
        kept = kept[-ANSWER_TOKENS:].clone()
        yield start + len(part), [reader.report() for reader in readers]
    for reader in readers:
        reader.answer(runner, ids, kept)
    yield len(ids), [reader.report() for reader in readers]


def _exact_store(runner: Runner, tokens: int) -> KVStore:
    """An empty store with keys and values in the model's own dtype."""
    if not runner.layout.quantised:
        return runner.new_store(tokens)
    layout = replace(runner.layout, kv_dtype="auto")
    check_kv_fits(layout, tokens, runner.device)
    return KVStore(layout, tokens, runner.backend, runner.device, runner.host_limit)


def measure_text(
    engine: Engine,
    text: str,
    methods: Sequence[str],
    settings: dict[str, dict[str, int]],
    max_tokens: int,
) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """`measure` for a text, cut to `max_tokens` and the trained length.

    Args:
        engine: the model.
        text: what is read.
        methods: names of attention methods.
        settings: of each method, what differs from its defaults.
        max_tokens: at most so many.

    Raises:
        DoesNotFitError: the text is shorter than two tokens.
    """
    tokenizer = engine.tokenizer
    ids = tokenizer.encode(text).ids.tolist()
    if tokenizer.bos_id is not None:
        ids.insert(0, tokenizer.bos_id)
    ids = ids[: min(max_tokens, engine.trained_tokens)]
    if len(ids) < 2:
        raise DoesNotFitError("the text for --fidelity has less than two tokens")
    runner = engine.runner
    device = runner.device.type
    made = [(name, make_method(name, settings.get(name, {}), device)) for name in methods]
    yield from measure(runner, made, torch.tensor(ids))


def _answers_from(num_tokens: int) -> int:
    """The border of a page from which a text of so many tokens runs once more, token by token."""
    first = max(0, num_tokens - 1 - ANSWER_TOKENS)
    return -(-first // PAGE_TOKENS) * PAGE_TOKENS


def _mean(values: list[Any]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
