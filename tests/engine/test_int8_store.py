"""Keys and values in int8 on a CPU: chunks, single tokens and reloaded pages agree."""

import dataclasses
from pathlib import Path

import pytest
import torch

from hipcli.engine.config import EngineConfig
from hipcli.engine.device import check_kv_dtype
from hipcli.engine.errors import DamagedSessionError, UsageError
from hipcli.engine.forward.runner import Runner
from hipcli.engine.loaded import _method
from hipcli.engine.methods.dense import DenseMethod
from hipcli.engine.methods.hip import HipMethod
from hipcli.engine.models import ModelFolder
from hipcli.engine.sessions.disk import Disk
from hipcli.engine.store.layout import layer_files
from hipcli.engine.store.limits import HostLimit
from hipcli.engine.store.pages import KVLayout, KVStore
from tests.engine.test_fp8_store import SPARSE, relative
from tests.engine.test_host_memory import answer as answer_within
from tests.engine.test_session_integrity import ask, flip, notices
from tests.engine.test_sessions import check_warm_is_cold, only_folder, read, request
from tests.engine.tiny import decode_logits, prefill_logits, random_ids, tiny_model

LENGTH = 420


@pytest.fixture(scope="module")
def int8() -> Runner:
    return Runner(tiny_model("llama"), "int8")


def test_a_page_is_half_as_large_and_its_scales() -> None:
    shape = {"num_layers": 30, "num_kv_heads": 3, "head_dim": 64, "dtype": torch.bfloat16}
    layout, wide = KVLayout(**shape, kv_dtype="int8"), KVLayout(**shape)
    assert layout.page_bytes == wide.page_bytes // 2 + 128
    assert layout.summary_bytes == wide.summary_bytes


@pytest.mark.parametrize("method", [DenseMethod, lambda: HipMethod(SPARSE)])
def test_logits_are_near_those_without_quantising_whatever_the_chunk(int8: Runner, method) -> None:
    ids = random_ids(LENGTH)
    whole = prefill_logits(int8, method(), ids, LENGTH)
    if isinstance(method(), DenseMethod):
        truth = prefill_logits(Runner(tiny_model("llama")), method(), ids, LENGTH)
        assert 0 < relative(whole, truth) < 0.05
    for chunk in (192, 64):
        logits = prefill_logits(int8, method(), ids, chunk)
        torch.testing.assert_close(logits, whole, rtol=1e-4, atol=1e-4)


def test_the_reference_attends_alike(int8: Runner) -> None:
    ids = random_ids(LENGTH)
    reference = Runner(tiny_model("llama"), "int8", backend="reference")
    expected = prefill_logits(reference, HipMethod(SPARSE), ids, 192)
    logits = prefill_logits(int8, HipMethod(SPARSE), ids, 192)
    torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-3)


def test_tokens_one_by_one_are_those_of_a_chunk(int8: Runner) -> None:
    """The page that is not full has smaller steps than it will have, and its newest tokens none."""
    ids = random_ids(200)
    prompt = 120
    read_at_once = prefill_logits(int8, DenseMethod(), ids, 200)[prompt:]
    one_by_one = decode_logits(int8, DenseMethod(), ids, prompt)
    assert relative(one_by_one, read_at_once) < 0.02


def test_a_store_holds_the_same_whoever_wrote_it(int8: Runner) -> None:
    layout = dataclasses.replace(int8.layout, num_layers=1)
    generator = torch.Generator().manual_seed(2)
    shape = (200, layout.num_kv_heads, layout.head_dim)
    k, v = (torch.randn(shape, generator=generator) for _ in range(2))
    # Scales that grow within a page.
    k *= torch.linspace(-4, 4, 200).exp2()[:, None, None]
    stores = []
    for cuts in ((0, 200), (0, 64, 192, 200), tuple(range(201)), (0, 100, 101, 160, 200)):
        store = KVStore(layout, 256)
        for start, end in zip(cuts[:-1], cuts[1:], strict=True):
            store.append(0, start, k[start:end], v[start:end])
        stores.append(store)
    first = stores[0]
    for store in stores[1:]:
        assert torch.equal(store.pages[0], first.pages[0])
        assert torch.equal(store.scales[0], first.scales[0])
        assert torch.equal(store.index[0].summaries[:, :3], first.index[0].summaries[:, :3])
    for one, truth in zip(first.tokens(0, 200), (k, v), strict=True):
        # A step is at least 1/128 and at most 1/64 of the largest value of a page.
        assert 0 < relative(one, truth) < 0.02


@pytest.mark.parametrize("mode", ["attend", "share", "reread"])
@pytest.mark.parametrize("length", [5, 129, 700])
def test_warm_equals_cold(int8: Runner, tmp_path: Path, length: int, mode: str) -> None:
    check_warm_is_cold(int8, request(tmp_path, length=length, answer=mode))


def test_files_hold_pages_and_scales(int8: Runner, tmp_path: Path) -> None:
    written, _ = read(int8, request(None))
    read(int8, request(tmp_path))
    loaded, _ = read(int8, request(tmp_path))
    for layer in range(int8.layout.num_layers):
        loaded.store.check_keys(layer)
        assert torch.equal(written.store.pages[layer][:15], loaded.store.pages[layer][:15])
        assert torch.equal(written.store.scales[layer][:15], loaded.store.scales[layer][:15])
        assert torch.equal(
            written.store.index[layer].summaries[:, :14],
            loaded.store.index[layer].summaries[:, :14],
        )


def test_a_damaged_scale_is_noticed_before_keys_are_read(int8: Runner, tmp_path: Path) -> None:
    asked = request(tmp_path)
    tokens, _, _ = ask(int8, asked)
    page_file, _ = layer_files(only_folder(tmp_path), 1)
    layout = int8.layout
    flip(page_file, 3 * layout.page_bytes + layout.content_bytes)
    context, _ = read(int8, asked)
    with pytest.raises(DamagedSessionError, match="layer 1, page 3"):
        context.store.check_keys(1)
    again, _, events = ask(int8, asked)
    assert again == tokens
    assert "session_damaged" in notices(events)


def test_answers_do_not_depend_on_the_limit_of_memory(tmp_path: Path) -> None:
    free, tight = (
        Runner(tiny_model("llama"), "int8", host_limit=HostLimit(limit, tmp_path))
        for limit in (1 << 40, 1)
    )
    expected, _ = answer_within(free, None, Disk(), "attend")
    for cache in (None, tmp_path / "cache", tmp_path / "cache"):
        assert answer_within(tight, cache, Disk(), "attend")[0] == expected


def test_refusals() -> None:
    with pytest.raises(UsageError, match="--kv-dtype int8 is for processors"):
        check_kv_dtype("int8", "cuda:0")
    check_kv_dtype("int8", "cpu")
    config = EngineConfig(Path("."), method="infllm", kv_dtype="int8")
    folder = ModelFolder("toy", Path("."), "local", "safetensors")
    with pytest.raises(UsageError, match="infllm does not attend keys and values in int8"):
        _method(config, Runner(tiny_model("llama"), "int8"), folder)
