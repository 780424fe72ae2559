"""How near a method comes to dense attention on any text, inside the trained window.

The text is read by dense attention and by every method side by side, slice by slice, so that only
one slice's logits are held at a time. Compared are the logits (perplexity, KL divergence, most
likely token) and, for one query of each slice, what the attended keys hold of the true attention:
its mass, and the keys with the highest scores. True scores are those of the method's own queries
and keys at their true positions.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from hipcli.engine.engine import Engine
from hipcli.engine.errors import DoesNotFitError
from hipcli.engine.methods import make_method
from hipcli.engine.methods.base import Geometry, Method
from hipcli.engine.methods.dense import DenseMethod
from hipcli.engine.passes import PrefillPass
from hipcli.engine.runner import Runner
from hipcli.engine.step import LayerAttention, StepInput
from hipcli.engine.store.pages import PAGE_TOKENS, KVStore
from hipcli.kernels.rope import rope

# Tokens whose logits are held at once; a multiple of the page size.
SLICE_TOKENS = 128
# The keys between sinks and window that a query scores highest: are they attended?
TOP_KEYS = 64


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
class Capture:
    """Sums over queries of what the attended keys hold of the true attention, for one layer."""

    queries: int = 0
    mass: float = 0.0
    recall_queries: int = 0
    recall: float = 0.0

    def report(self) -> dict[str, float | None]:
        """Means over queries and heads."""
        return {
            "mass": self.mass / self.queries if self.queries else None,
            "top_keys": self.recall / self.recall_queries if self.recall_queries else None,
        }


class _Recorded:
    """A method that remembers which pages it selected last."""

    def __init__(self, method: Method) -> None:
        self._method = method
        self.selected: torch.Tensor | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    def select_prefill(self, *arguments: Any) -> torch.Tensor | None:
        self.selected = self._method.select_prefill(*arguments)
        return self.selected


@dataclass(slots=True)
class _Watch:
    """The attention of a reading pass, and a look at the last query of each."""

    method: Any
    inner: LayerAttention
    captures: dict[int, Capture] = field(default_factory=dict)

    def attend(self, layer: int, q: torch.Tensor, step: StepInput) -> torch.Tensor:
        """See `LayerAttention.attend`."""
        out = self.inner.attend(layer, q, step)
        position = step.start + q.shape[0] - 1
        if self.method.geometry.window_start(position) > 0:
            capture = self.captures.setdefault(layer, Capture())
            scores = true_scores(layer, q[-1:], step, position)
            kept = attended(self.method.geometry, self.method.selected, position, step.store)
            self._count(capture, scores, kept, position)
        return out

    def _count(
        self, capture: Capture, scores: torch.Tensor, kept: torch.Tensor, position: int
    ) -> None:
        """Scores fp32 [num_kv_heads, group, keys], kept bool [num_kv_heads, keys]."""
        kept = kept.unsqueeze(1).expand_as(scores)
        capture.queries += 1
        capture.mass += float((scores.softmax(-1) * kept).sum(-1).mean())
        geometry: Geometry = self.method.geometry
        first, last = geometry.sink_tokens, geometry.window_start(position)
        if last - first > TOP_KEYS:
            best = scores[..., first:last].topk(TOP_KEYS).indices + first
            capture.recall_queries += 1
            capture.recall += float(kept.gather(-1, best).float().mean())


def true_scores(layer: int, q: torch.Tensor, step: StepInput, position: int) -> torch.Tensor:
    """Scores of one query at its true position: fp32 [num_kv_heads, group, position + 1].

    Args:
        q: [1, num_heads, head_dim], un-rotated.
    """
    store, end = step.store, position + 1
    tables = step.tables.first(end)
    keys = store.pages[layer][: -(-end // PAGE_TOKENS), 0].transpose(1, 2).flatten(0, 1)[:end]
    positions = torch.arange(end, device=q.device)
    keys = rope(keys, positions, tables, backend=store.backend).float()
    query = rope(q, positions[position:], tables, backend=store.backend).float()
    query = query[0].unflatten(0, (keys.shape[1], -1))
    return torch.einsum("hgd,thd->hgt", query, keys) * step.softmax_scale


def attended(
    geometry: Geometry, selected: torch.Tensor | None, position: int, store: KVStore
) -> torch.Tensor:
    """Which keys a query attends: bool [num_kv_heads, position + 1].

    Args:
        selected: pages of the last query block, int32 [num_q_blocks, num_kv_heads, n], or None.
    """
    heads = store.layout.num_kv_heads
    kept = torch.zeros(heads, position + 1, dtype=torch.bool, device=store.device)
    kept[:, : geometry.sink_tokens] = True
    kept[:, geometry.window_start(position) :] = True
    if selected is not None:
        page = torch.arange(position + 1, device=store.device) // PAGE_TOKENS
        pages = torch.zeros(heads, int(page[-1]) + 2, dtype=torch.bool, device=store.device)
        # Unused places are -1: they mark the last page, which no key is in.
        pages.scatter_(1, selected[-1].long() % pages.shape[1], True)
        kept |= pages[:, page]
    return kept


@dataclass(slots=True)
class _Reader:
    """One method reading the text."""

    name: str
    method: Method
    store: KVStore
    attention: LayerAttention
    watch: _Watch | None = None
    every: Distance = field(default_factory=Distance)
    sparse: Distance = field(default_factory=Distance)

    @classmethod
    def of(cls, name: str, method: Method, runner: Runner, tokens: int) -> "_Reader":
        recorded: Any = _Recorded(method)
        watch = _Watch(recorded, PrefillPass(recorded))
        return cls(name, method, runner.new_store(tokens), watch, watch)

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
        that are `sparse` (that leave keys out), and per layer `mass` and `top_keys`.
    """
    dense = DenseMethod()
    store = runner.new_store(len(ids))
    reference = _Reader("dense", dense, store, PrefillPass(dense))
    readers = [_Reader.of(name, method, runner, len(ids)) for name, method in methods]
    for start in range(0, len(ids), SLICE_TOKENS):
        part = ids[start : start + SLICE_TOKENS]
        targets = ids[start + 1 : start + 1 + len(part)].to(runner.device)
        expected = reference.logits(runner, part, start)[: len(targets)]
        for reader in readers:
            logits = reader.logits(runner, part, start)[: len(targets)]
            reader.compare(logits, expected, targets, start)
        yield start + len(part), [reader.report() for reader in readers]


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
    made = [(name, make_method(name, settings.get(name, {}))) for name in methods]
    yield from measure(engine.runner, made, torch.tensor(ids))


def _mean(values: list[Any]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
