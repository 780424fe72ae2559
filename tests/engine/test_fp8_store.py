"""Keys and values in fp8: the engine on the reference kernels, as a GPU runs it."""

from pathlib import Path

import pytest
import torch

from hipcli.engine.answering.decoding import generate
from hipcli.engine.answering.sampler import Sampler
from hipcli.engine.config import EngineConfig
from hipcli.engine.device import check_kv_dtype
from hipcli.engine.errors import UsageError
from hipcli.engine.forward.runner import Runner
from hipcli.engine.methods.configs import HipConfig
from hipcli.engine.methods.dense import DenseMethod
from hipcli.engine.methods.hip import HipMethod
from hipcli.engine.passes import AnswerPass
from hipcli.engine.store.pages import KVLayout
from tests.engine.test_device_path import after_prompt, assert_fused_is_dense
from tests.engine.test_sessions import check_warm_is_cold, read, request
from tests.engine.tiny import decode_logits, prefill_logits, random_ids, tiny_model
from tests.gpu.wide import wide_model

LENGTH = 420
SPARSE = HipConfig(
    sink_tokens=64,
    window_tokens=64,
    budget_tokens=64,
    prefill_budget_tokens=64,
    dense_tokens=0,
    candidate_tokens=128,
    query_distance_tokens=100,
)


@pytest.fixture(scope="module")
def fp8() -> Runner:
    return Runner(tiny_model("llama"), "fp8_e4m3", backend="reference")


@pytest.fixture(scope="module")
def plain() -> Runner:
    return Runner(tiny_model("llama"), backend="reference")


def relative(value: torch.Tensor, truth: torch.Tensor) -> float:
    return float((value - truth).norm() / truth.norm())


def test_a_page_is_half_as_large_and_its_scales() -> None:
    shape = {"num_layers": 32, "num_kv_heads": 8, "head_dim": 128, "dtype": torch.bfloat16}
    layout, wide = KVLayout(**shape, kv_dtype="fp8_e4m3"), KVLayout(**shape)
    assert layout.page_bytes == wide.page_bytes // 2 + 128
    assert layout.summary_bytes == wide.summary_bytes
    # 64 KiB a token of keys and values, 2 KiB of summaries: a million tokens on one large GPU.
    assert layout.num_bytes(1 << 20) < 67 * 2**30


def test_logits_are_near_those_without_quantising(fp8: Runner, plain: Runner) -> None:
    """Every key and value is off by up to 1/16 of itself, 0.02 of it in the mean square."""
    ids = random_ids(LENGTH)
    truth = prefill_logits(plain, DenseMethod(), ids, LENGTH)
    logits = prefill_logits(fp8, DenseMethod(), ids, LENGTH)
    assert 0 < relative(logits, truth) < 0.15


@pytest.mark.parametrize("method", [DenseMethod, lambda: HipMethod(SPARSE)])
def test_chunks_do_not_matter(fp8: Runner, method) -> None:
    ids = random_ids(LENGTH)
    whole = prefill_logits(fp8, method(), ids, LENGTH)
    for chunk in (192, 64):
        logits = prefill_logits(fp8, method(), ids, chunk)
        torch.testing.assert_close(logits, whole, rtol=1e-4, atol=1e-4)


def test_tokens_one_by_one_are_those_of_a_chunk(fp8: Runner) -> None:
    ids = random_ids(200)
    prompt = 120
    read_at_once = prefill_logits(fp8, DenseMethod(), ids, 200)[prompt:]
    one_by_one = decode_logits(fp8, DenseMethod(), ids, prompt)
    assert relative(one_by_one, read_at_once) < 2e-3


@pytest.mark.parametrize("mode", ["attend", "share", "reread"])
@pytest.mark.parametrize("length", [5, 128, 129, 700])
def test_warm_equals_cold(fp8: Runner, tmp_path: Path, length: int, mode: str) -> None:
    check_warm_is_cold(fp8, request(tmp_path, length=length, answer=mode))


def test_files_hold_pages_and_scales(fp8: Runner, tmp_path: Path) -> None:
    written, _ = read(fp8, request(None))
    read(fp8, request(tmp_path))
    loaded, _ = read(fp8, request(tmp_path))
    for layer in range(fp8.layout.num_layers):
        for one, other in zip(
            written.store.tokens(layer, 900), loaded.store.tokens(layer, 900), strict=True
        ):
            assert torch.equal(one, other)
        assert torch.equal(written.store.scales[layer][:15], loaded.store.scales[layer][:15])
        assert torch.equal(
            written.store.index[layer].summaries[:, :14],
            loaded.store.index[layer].summaries[:, :14],
        )


@pytest.mark.parametrize("start, end", [(0, 100), (70, 200)])
def test_fused_attention_is_dense_attention(fp8: Runner, start: int, end: int) -> None:
    assert_fused_is_dense(fp8, start, end)


def test_triton_in_its_interpreter() -> None:
    """The engine's own calls: strided pages, scales between them, tokens placed on the device."""
    results = []
    for backend in ("reference", "triton"):
        method = HipMethod(SPARSE)
        runner = Runner(wide_model(torch.float32, layers=1), "fp8_e4m3", backend=backend)
        store, logits = after_prompt(runner, method, 300, 310)
        attention = AnswerPass(method)
        results.append((logits, list(generate(runner, store, attention, Sampler(0, 0), logits, 6))))
    torch.testing.assert_close(results[1][0], results[0][0], rtol=1e-4, atol=1e-4)
    assert results[1][1] == results[0][1]


def test_refusals() -> None:
    with pytest.raises(ValueError, match="'int3'; it must be one of auto, fp8_e4m3, int8"):
        EngineConfig(Path("models"), kv_dtype="int3")
    with pytest.raises(UsageError, match="--kv-dtype fp8_e4m3 needs a GPU"):
        check_kv_dtype("fp8_e4m3", "cpu")
    check_kv_dtype("auto", "cpu")
