"""What the sections of `benchmarks/tiers.py` are made of."""

from __future__ import annotations

import threading
from dataclasses import replace

import torch

from hipcli.engine.answering.decoding import DeviceDecoder
from hipcli.engine.answering.phases import Phase
from hipcli.engine.benchmarks.engine_gpu import event
from hipcli.engine.device import GPU_CHUNK_TOKENS, GPU_DENSE_TOKENS
from hipcli.engine.forward.runner import Runner
from hipcli.engine.methods.configs import HipConfig
from hipcli.engine.methods.hip import HipMethod
from hipcli.engine.passes import AnswerPass
from hipcli.engine.store.pages import KVLayout, KVStore, num_pages
from hipcli.engine.store.tiers import TierPlan

CHUNK = GPU_CHUNK_TOKENS
# Longer than a launch from the host takes: what is timed waits for it on the device.
PAUSE_CYCLES = 120_000


def method() -> HipMethod:
    """The default method as it runs on a GPU."""
    return HipMethod(HipConfig(), dense_floor_tokens=GPU_DENSE_TOKENS)


def plan_of(
    layout: KVLayout, capacity_tokens: int, device_gib: float, host_gib: float = 0
) -> TierPlan:
    """Slots for so many GiB of keys, values and summaries on the device.

    Args:
        host_gib: main memory for pages; what it has no room for stays on the device, beside the
            slots. 0 for as much as there are.
    """
    pages = num_pages(capacity_tokens)
    index = layout.num_layers * pages * layout.summary_bytes
    slots = (device_gib * 2**30 - index) // (layout.num_layers * layout.page_bytes)
    plan = TierPlan(slots=min(int(slots), pages), capacity_pages=pages)
    slab = layout.num_layers * plan.slab_pages * layout.page_bytes
    held = int(host_gib * 2**30 // slab) if host_gib else pages
    return replace(plan, device_slabs=max(0, -(-pages // plan.slab_pages) - held))


@torch.inference_mode()
def attention_ms(
    runner: Runner, store: KVStore, steps: list[tuple[tuple[str, ...], list]]
) -> list[tuple[str, float]]:
    """Kind and milliseconds of the attention of every layer in every step, in CUDA graphs.

    The position stays that of the last step: windows do not move.
    """
    decoder = DeviceDecoder(runner, store, AnswerPass(method()))
    attention, step = decoder.attention, decoder.state
    step.position.sub_(1)
    step.begin()
    buffers = [q.clone() for q, _ in steps[0][1]]
    step.softmax_scale = steps[0][1][0][1]
    graphs: dict[tuple[int, str], torch.cuda.CUDAGraph] = {}
    pool = torch.cuda.graph_pool_handle()
    marks = []
    for number, (whats, queries) in enumerate(steps):
        layers = ("pages",) * len(buffers) if number == 0 else whats
        attention.phase = Phase(str(number), layers)
        for layer, what in enumerate(layers):
            buffers[layer].copy_(queries[layer][0])
            # The first step of all chooses for everyone, not timed: compiling, loading.
            if number == 0 or (what == "pages" and not store.fetches_in_graphs):
                attention.attend(layer, buffers[layer], step)
                continue
            if (layer, what) not in graphs:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool, capture_error_mode="thread_local"):
                    attention.attend(layer, buffers[layer], step)
                graphs[layer, what] = graph
            torch.cuda._sleep(PAUSE_CYCLES)
            before = event()
            graphs[layer, what].replay()
            marks.append((what, before, event()))
    torch.cuda.synchronize()
    return [(what, a.elapsed_time(b)) for what, a, b in marks]


def table_bytes(store: KVStore) -> int:
    """Page tables, and what is known of each slot, on the device."""
    layout = store.layout
    tables = sum(kv.page_table.nbytes for kv in store.kv)
    return tables + 3 * 4 * layout.num_layers * layout.num_kv_heads * store.device_pages


def fill(store: KVStore, tokens: int) -> None:
    """Random keys and values for so many tokens, as a reading would write them."""
    layout = store.layout
    shape = (CHUNK, layout.num_kv_heads, layout.head_dim)
    k, v = (torch.randn(shape, dtype=layout.dtype, device=store.device) for _ in range(2))
    geometry = method().geometry
    for low in range(0, tokens, CHUNK):
        high = min(low + CHUNK, tokens)
        window = max(0, low - geometry.window_tokens)
        store.reserve(low, high, window, geometry.sink_tokens)
        # Other tokens stand on each page, with other signs.
        shift = (low // CHUNK * 61) % CHUNK
        k = k.roll(shift, 0) * torch.sign(torch.randn(layout.head_dim, device=store.device)).to(
            k.dtype
        )
        for layer in range(layout.num_layers):
            store.append(layer, low, k[: high - low], v[: high - low])
            store.written_through(layer, low, high)
        store.length = high


def grow_memory(gib: float) -> threading.Thread:
    """Touch so much memory once, beside other work: a virtual machine may grow as it is used, and
    that is not what is timed."""

    def touch() -> None:
        memory = torch.empty(int(gib * 2**30), dtype=torch.uint8)
        for piece in memory.split(1 << 28):
            piece.fill_(1)

    thread = threading.Thread(target=touch, daemon=True)
    thread.start()
    return thread
