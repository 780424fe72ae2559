"""Correctness of tiered stores before they are timed: what a store on the device gives."""

from __future__ import annotations

import torch

from hipcli.engine.answering.decoding import DeviceDecoder
from hipcli.engine.benchmarks.engine_checks import (
    LENGTH,
    SMALL,
    VOCAB,
    relative,
    require,
    tiny_llama,
)
from hipcli.engine.forward.runner import Runner
from hipcli.engine.forward.step import StepInput
from hipcli.engine.methods.hip import HipMethod
from hipcli.engine.passes import AnswerPass, PrefillPass
from hipcli.engine.store.pages import PAGE_TOKENS, KVStore, num_pages
from hipcli.engine.store.tiered_store import TieredStore
from hipcli.engine.store.tiers import TierPlan

CHUNK = 256
STEPS = 100
# A chunk with its window, the candidates of a token, and two to spare.
SLOTS = (14, 18)
# The same sums in the same order; where queries come in other pieces a product may round otherwise.
BUDGETS = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


def stores(runner: Runner, capacity_tokens: int) -> dict[str, KVStore]:
    """All pages on the device, few of them, and a few more."""
    pages = num_pages(capacity_tokens)
    found = {"device": runner.new_store(capacity_tokens)}
    for slots in SLOTS:
        plan = TierPlan(slots=slots, capacity_pages=pages)
        found[f"{slots} of {pages} pages"] = TieredStore(
            runner.layout, capacity_tokens, plan, runner.backend, runner.device
        )
    return found


def read(runner: Runner, method: HipMethod, store: KVStore, ids: torch.Tensor) -> torch.Tensor:
    """Logits of all tokens."""
    parts = []
    for start in range(0, len(ids), CHUNK):
        part = ids[start : start + CHUNK]
        step = StepInput(store, runner.tables, PrefillPass(method), start)
        parts.append(runner.logits(part, step, keep=len(part)))
    method.reset()
    return torch.cat(parts)


def keys_alone(store: KVStore) -> None:
    """Let all pages that may make way pass through the slots of a tiered store without values."""
    heads, last = store.layout.num_kv_heads, store.length // PAGE_TOKENS
    for layer in range(store.layout.num_layers if store.tiered else 0):
        for page in range(last):
            listed = torch.full((heads, 1), page, dtype=torch.int32, device=store.device)
            store.fetch(layer, listed, keys_only=True)


def decode(
    runner: Runner, attention: AnswerPass, store: KVStore, ids: torch.Tensor, *, graphs: bool
) -> torch.Tensor:
    """Logits of every step, of which none finds values that it did not ask for."""
    keys_alone(store)
    decoder = DeviceDecoder(runner, store, attention, graphs=graphs, staggered=True)
    rows = []
    for token in ids:
        decoder.feed(token)
        decoder.step()
        rows.append(decoder.logits.clone())
    return torch.stack(rows)


def check_tiers(device: str = "cuda") -> None:
    """Reading and decoding, in fp32, bf16 and fp8 pages; graphs and single launches."""
    backend = "triton" if device == "cuda" else "reference"
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, VOCAB, (LENGTH + STEPS,), generator=generator)
    for dtype, kv_dtype in (
        (torch.float32, "auto"),
        (torch.bfloat16, "auto"),
        (torch.bfloat16, "fp8_e4m3"),
    ):
        runner = Runner(tiny_llama().to(device, dtype), kv_dtype, backend)
        expected: dict[str, torch.Tensor] = {}
        name = f"{str(dtype)[6:]}, KV {kv_dtype}"
        for where, store in stores(runner, LENGTH + STEPS).items():
            found = {"read": read(runner, HipMethod(SMALL), store, ids[:LENGTH])}
            tail = store.tail()
            for graphs in (False, True):
                for given in (None, torch.tensor([1, 3, 4, 9])):
                    store.rewind(tail)
                    attention = AnswerPass(HipMethod(SMALL), given)
                    what = (
                        f"{'graph' if graphs else 'eager'}{' given' if given is not None else ''}"
                    )
                    steps = ids[LENGTH:]
                    found[what] = decode(runner, attention, store, steps, graphs=graphs)
            for what, logits in found.items():
                if where != "device":
                    error = relative(logits, expected[what])
                    require(f"{name}, {what}, {where}", error, BUDGETS[dtype])
                elif what.startswith("graph"):
                    error = relative(logits, found[what.replace("graph", "eager")])
                    require(f"{name}, {what} as eager", error, 1e-6)
            expected = expected or found
