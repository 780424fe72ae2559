"""Laws that hold for every attention method."""

import pytest
import torch

from hipcli.engine.forward.runner import Runner
from hipcli.engine.forward.step import StepInput
from hipcli.engine.methods.configs import (
    HipPaperConfig,
    InfiniConfig,
    InfLLMConfig,
    QuestConfig,
    ReAttentionConfig,
    WindowConfig,
)
from hipcli.engine.methods.dense import DenseMethod
from hipcli.engine.methods.geometry import Geometry
from hipcli.engine.methods.hip_paper import HipPaperMethod
from hipcli.engine.methods.infini import InfiniMethod
from hipcli.engine.methods.infllm import InfLLMMethod
from hipcli.engine.methods.quest import QuestMethod
from hipcli.engine.methods.reattention import ReAttentionMethod
from hipcli.engine.methods.window import WindowMethod
from hipcli.engine.passes import PrefillPass
from hipcli.engine.store.pages import KVStore
from tests.engine.tiny import (
    decode_logits,
    prefill_logits,
    random_ids,
    stock_logits,
    tiny_hip,
    tiny_model,
)


def infini() -> InfiniMethod:
    """With gates of all kinds, none of them trained."""
    method = InfiniMethod(InfiniConfig(segment_tokens=128))
    method.own_attention.gates = torch.linspace(-3, 3, 18).view(3, 6)
    return method


SPARSE = {
    "hip": tiny_hip,
    "hip, near": lambda: tiny_hip(256),
    "quest": lambda: QuestMethod(
        QuestConfig(sink_tokens=64, window_tokens=128, budget_tokens=128, query_distance_tokens=200)
    ),
    "infllm": lambda: InfLLMMethod(
        InfLLMConfig(
            sink_tokens=64,
            window_tokens=128,
            budget_tokens=128,
            block_tokens=64,
            query_block_tokens=64,
        )
    ),
    "hip-paper": lambda: HipPaperMethod(
        HipPaperConfig(
            sink_tokens=64,
            window_tokens=128,
            budget_tokens=64,
            first_layers=1,
            chunk_tokens=64,
            middle_chunk_tokens=16,
            first_kept_tokens=256,
            second_kept_tokens=128,
        )
    ),
    "reattention": lambda: ReAttentionMethod(
        ReAttentionConfig(
            sink_tokens=64, window_tokens=128, budget_tokens=128, query_block_tokens=64
        )
    ),
    "infini": infini,
    "window": lambda: WindowMethod(WindowConfig(sink_tokens=64, window_tokens=128)),
}
# Until here every query attends everything at true distances.
DENSE_TOKENS = {"infllm": 128}
LENGTH = 900


@pytest.fixture(scope="module")
def runner() -> Runner:
    return Runner(tiny_model("llama"))


@pytest.mark.parametrize("name", SPARSE)
def test_sparse_differs_from_dense(runner: Runner, name: str) -> None:
    """Guards the laws: at this budget something is left out."""
    ids = random_ids(LENGTH)
    dense = prefill_logits(runner, DenseMethod(), ids, 128)
    sparse = prefill_logits(runner, SPARSE[name](), ids, 128)
    assert (dense[-64:] - sparse[-64:]).abs().max() > 0.1


@pytest.mark.parametrize("name", sorted(SPARSE.keys() - {"infini"}))
def test_dense_where_everything_fits(runner: Runner, name: str) -> None:
    """Until sinks, window and budget are exceeded, the output is dense attention's."""
    ids = random_ids(LENGTH)
    dense = prefill_logits(runner, DenseMethod(), ids, 128)
    sparse = prefill_logits(runner, SPARSE[name](), ids, 128)
    first = DENSE_TOKENS.get(name, 192)
    torch.testing.assert_close(sparse[:first], dense[:first], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SPARSE)
@pytest.mark.parametrize("chunk", [64, 192, 448])
def test_chunked_prefill_equals_one_shot(runner: Runner, name: str, chunk: int) -> None:
    ids = random_ids(LENGTH)
    whole = prefill_logits(runner, SPARSE[name](), ids, LENGTH)
    chunked = prefill_logits(runner, SPARSE[name](), ids, chunk)
    torch.testing.assert_close(chunked, whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["window", "infini"])
def test_decode_equals_prefill(runner: Runner, name: str) -> None:
    """Where what is attended does not depend on how many queries run together."""
    ids = random_ids(500)
    whole = prefill_logits(runner, SPARSE[name](), ids, 500)
    decoded = decode_logits(runner, SPARSE[name](), ids, prompt=400)
    torch.testing.assert_close(decoded, whole[400:], rtol=1e-4, atol=1e-4)


def test_window_equals_masked_attention_at_packed_positions() -> None:
    """Independent oracle in fp64: positions and masks spelled out."""
    torch.manual_seed(3)
    model = tiny_model("llama")
    runner = Runner(model)
    geometry = Geometry(sink_tokens=64, window_tokens=128, dense_tokens=0)
    length, heads, head_dim = 700, runner.num_heads, runner.layout.head_dim
    q = torch.randn(length, heads, head_dim)
    k = torch.randn(length, runner.layout.num_kv_heads, head_dim)
    v = torch.randn(length, runner.layout.num_kv_heads, head_dim)
    store = KVStore(runner.layout, length)
    store.append(0, 0, k, v)
    method = WindowMethod(WindowConfig(sink_tokens=64, window_tokens=128))
    step = StepInput(store, runner.tables, PrefillPass(method), 0, head_dim**-0.5)
    out = step.attention.attend(0, q, step)
    inverse = 1.0 / (10000.0 ** (torch.arange(0, head_dim, 2).double() / head_dim))
    for position in (0, 63, 200, 255, 256, 257, 511, 699):
        start = geometry.window_start(position)
        keys = [*(range(64) if start else ()), *range(start, position + 1)]
        packed = torch.arange(len(keys)).double()
        for head in (0, heads - 1):
            kv_head = head // (heads // runner.layout.num_kv_heads)
            rotated_q = rotate(q[position, head].double(), packed[-1], inverse)
            rotated_k = torch.stack(
                [
                    rotate(k[j, kv_head].double(), p, inverse)
                    for j, p in zip(keys, packed, strict=True)
                ]
            )
            weights = torch.softmax(rotated_k @ rotated_q * head_dim**-0.5, 0)
            expected = weights @ v[keys, kv_head].double()
            torch.testing.assert_close(out[position, head].double(), expected, rtol=1e-4, atol=1e-5)


def rotate(x: torch.Tensor, position: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
    """RoPE as complex multiplication of the halves."""
    half = x.shape[-1] // 2
    turned = torch.complex(x[:half], x[half:]) * torch.exp(1j * position * inverse)
    return torch.cat((turned.real, turned.imag))


def test_selection_stays_between_sinks_and_window(runner: Runner) -> None:
    method = SPARSE["hip"]()
    store = KVStore(runner.layout, LENGTH)
    shape = (LENGTH, runner.layout.num_kv_heads, runner.layout.head_dim)
    store.append(0, 0, torch.randn(shape), torch.randn(shape))
    q = torch.randn(128, runner.num_heads, runner.layout.head_dim)
    step = StepInput(store, runner.tables, PrefillPass(method), 704)
    starts = method.geometry.window_starts(704, 832)
    pages = method.select_prefill(0, q, torch.tensor(starts, dtype=torch.int32), step)
    assert pages is not None and pages.shape == (2, runner.layout.num_kv_heads, 2)
    for block, start in enumerate(starts):
        assert (pages[block] >= 1).all() and ((pages[block] + 1) * 64 <= start).all()
        assert (pages[block].diff(dim=-1) > 0).all()
    step = StepInput(store, runner.tables, PrefillPass(method), 899)
    blocks = method.select_token(0, q[0], step)
    assert blocks is not None and (blocks.diff(dim=-1) > 0).all()
    assert (blocks * 16 >= 64).all()
    assert ((blocks + 1) * 16 <= method.geometry.window_start(899)).all()


def test_planted_key_is_selected(runner: Runner) -> None:
    """One key that the query wants, anywhere in its page: every offset must be found."""
    head_dim = runner.layout.head_dim
    for offset in range(0, 64, 7):
        method = SPARSE["hip"]()
        store = KVStore(runner.layout, LENGTH)
        torch.manual_seed(offset)
        k = torch.randn(LENGTH, runner.layout.num_kv_heads, head_dim) * 0.3
        q = torch.randn(1, runner.num_heads, head_dim)
        cos, sin = runner.tables.rows(200, 201)
        half = head_dim // 2
        turned = torch.cat(
            (
                q[0, 0, :half] * cos[0, :half] - q[0, 0, half:] * sin[0, :half],
                q[0, 0, half:] * cos[0, half:] + q[0, 0, :half] * sin[0, half:],
            )
        )
        wanted = 320 + offset
        k[wanted, 0] = turned * 3
        store.append(0, 0, k, torch.randn_like(k))
        step = StepInput(store, runner.tables, PrefillPass(method), 899, head_dim**-0.5)
        blocks = method.select_token(0, q[0], step)
        assert wanted // 16 in blocks[0].tolist()


def test_stock_untouched_by_registration() -> None:
    """Registering hip's attention leaves other models alone."""
    ids = random_ids(50)
    before = stock_logits(tiny_model("llama"), ids)
    Runner(tiny_model("qwen2"))
    torch.testing.assert_close(stock_logits(tiny_model("llama"), ids), before)
