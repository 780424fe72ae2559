"""What a GPU runs, on a CPU with the reference kernels: the same answers, the same sessions."""

import dataclasses
import errno
import os
from pathlib import Path

import pytest
import torch

from hipcli.engine.answering.decoding import DeviceDecoder, generate
from hipcli.engine.answering.sampler import Sampler
from hipcli.engine.config import CacheConfig
from hipcli.engine.device import chunk_tokens
from hipcli.engine.forward.dense import fused_attention
from hipcli.engine.forward.runner import Runner
from hipcli.engine.forward.step import StepInput
from hipcli.engine.methods.base import Schedule
from hipcli.engine.methods.configs import HipConfig
from hipcli.engine.methods.dense import DenseMethod
from hipcli.engine.methods.geometry import Geometry
from hipcli.engine.methods.hip import HipMethod
from hipcli.engine.passes import AnswerPass, PrefillPass
from hipcli.engine.sessions import SessionStore
from hipcli.engine.store.pages import KVStore
from tests.engine.test_method_laws import SPARSE
from tests.engine.test_session_integrity import flip, notices
from tests.engine.test_sessions import answer, read, request
from tests.engine.tiny import prefill_logits, random_ids, tiny_hip, tiny_model
from tests.gpu.wide import wide_model

METHODS = {**SPARSE, "dense": DenseMethod}
LENGTH = 500


@pytest.fixture(scope="module")
def host() -> Runner:
    return Runner(tiny_model("llama"))


@pytest.fixture(scope="module")
def device() -> Runner:
    return Runner(tiny_model("llama"), backend="reference")


def after_prompt(runner: Runner, method, length: int, capacity: int):
    """A store with a prompt, and the logits of the token after it."""
    ids = random_ids(length)
    store = runner.new_store(capacity)
    for start in range(0, length, 256):
        part = ids[start : start + 256]
        step = StepInput(store, runner.tables, PrefillPass(method), start)
        logits = runner.logits(part, step)[-1]
    method.reset()
    return store, logits


@pytest.mark.parametrize("name", METHODS)
def test_prefill_is_the_cpus(host: Runner, device: Runner, name: str) -> None:
    ids = random_ids(LENGTH)
    expected = prefill_logits(host, METHODS[name](), ids, 192)
    for chunk in (192, 100):
        logits = prefill_logits(device, METHODS[name](), ids, chunk)
        # Off the grid of pages what is selected depends on the chunk.
        if chunk == 192 or name in ("window", "dense"):
            torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("prompt", [150, 500])
def test_decoder_generates_the_cpus_tokens(
    host: Runner, device: Runner, name: str, prompt: int
) -> None:
    """Across the borders of pages, of the window and of dense attention."""
    tokens = []
    for runner in (host, device):
        method = METHODS[name]()
        store, logits = after_prompt(runner, method, prompt, prompt + 120)
        attention = AnswerPass(method)
        tokens.append(list(generate(runner, store, attention, Sampler(0, 0), logits, 120)))
        assert store.length == prompt + 119
    assert tokens[0] == tokens[1]


def test_decoder_summarises_what_dense_steps_left(device: Runner) -> None:
    """Pages filled while attention was dense can be selected once it is not."""
    config = HipConfig(
        sink_tokens=64,
        window_tokens=64,
        budget_tokens=128,
        prefill_budget_tokens=128,
        dense_tokens=448,
        candidate_tokens=256,
        query_distance_tokens=100,
    )
    method = HipMethod(config)
    store, logits = after_prompt(device, method, 190, 520)
    list(generate(device, store, AnswerPass(method), Sampler(0, 0), logits, 320))
    again = KVStore(device.layout, 520)
    for layer in range(device.layout.num_layers):
        k, v = store.pages[layer].permute(1, 0, 3, 2, 4).flatten(1, 2)[:, : store.length]
        again.append(layer, 0, k, v)
        # The window's pages are not candidates yet.
        selectable = slice(0, config.window_tokens // -64 + store.length // 64)
        torch.testing.assert_close(
            store.index[layer].summaries[:, selectable],
            again.index[layer].summaries[:, selectable],
        )


def test_full_store_is_refused(device: Runner) -> None:
    method = DenseMethod()
    store, _ = after_prompt(device, method, 64, 64)
    with pytest.raises(ValueError, match="full"):
        DeviceDecoder(device, store, AnswerPass(method)).step()


@pytest.mark.parametrize("mode", ["attend", "share", "reread"])
def test_answers_are_the_cpus(host: Runner, device: Runner, mode: str) -> None:
    ask = request(None, length=700, answer=mode)
    answers = []
    for runner in (host, device):
        context, _ = read(runner, ask)
        answers.append(answer(runner, context, ask))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("writer, reader", [("host", "device"), ("device", "host")])
@pytest.mark.parametrize("length", [127, 700])
def test_sessions_serve_both(
    request_runners: dict[str, Runner], tmp_path: Path, writer: str, reader: str, length: int
) -> None:
    ask = request(tmp_path, length=length, answer="attend")
    first, _ = read(request_runners[writer], ask)
    expected = answer(request_runners[writer], first, ask)
    warm, _ = read(request_runners[reader], ask)
    assert warm.session.reused and warm.cached_tokens == length
    assert answer(request_runners[reader], warm, ask) == expected
    # The question must not have reached the files.
    again, _ = read(request_runners[writer], ask)
    assert answer(request_runners[writer], again, ask) == expected


@pytest.fixture
def request_runners(host: Runner, device: Runner) -> dict[str, Runner]:
    return {"host": host, "device": device}


def test_interrupted_prefill_goes_on_elsewhere(
    host: Runner, device: Runner, tmp_path: Path
) -> None:
    ask = request(tmp_path, length=700)
    plain = dataclasses.replace(ask, cache=request(None).cache)
    expected = answer(host, read(host, plain)[0], plain)
    from hipcli.engine.events import Progress
    from hipcli.engine.reading.context import ContextReader
    from tests.engine.test_sessions import CHUNK, IDENTITY

    stream = ContextReader(device, tiny_hip(), ask, IDENTITY, CHUNK, 64).read()
    for event in stream:
        if isinstance(event, Progress) and event.done_tokens >= 3 * CHUNK:
            break
    stream.close()
    context, _ = read(host, ask)
    assert context.cached_tokens >= CHUNK
    assert answer(host, context, ask) == expected


def assert_fused_is_dense(runner: Runner, start: int, end: int) -> None:
    """Dense attention of the tokens [start, end) by PyTorch is that of the kernels."""
    layout = runner.layout
    store = runner.new_store(256)
    generator = torch.Generator().manual_seed(end)
    shape = (end, layout.num_kv_heads, layout.head_dim)
    store.append(0, 0, *(torch.randn(shape, generator=generator) for _ in range(2)))
    q = torch.randn(end - start, runner.num_heads, layout.head_dim, generator=generator)
    step = StepInput(store, runner.tables, PrefillPass(DenseMethod()), start, 0.2)
    expected = step.attention.attend(0, q, step)
    torch.testing.assert_close(
        fused_attention(0, q, step, start, end), expected, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("start, end", [(0, 100), (0, 128), (70, 200)])
def test_fused_attention_is_dense_attention(device: Runner, start: int, end: int) -> None:
    assert_fused_is_dense(device, start, end)


def test_window_starts_on_the_device_are_the_hosts() -> None:
    for dense_tokens in (0, 500, 1 << 62):
        geometry = Geometry(sink_tokens=64, window_tokens=128, dense_tokens=dense_tokens)
        positions = torch.arange(0, 1500, 7)
        expected = [geometry.window_start(position) for position in positions.tolist()]
        assert geometry.window_starts_at(positions).tolist() == expected


def test_schedule() -> None:
    schedule = Schedule(page_steps=6, block_steps=2)
    what = [schedule.next(position, 128) for position in range(8)]
    assert what == ["pages", "keep", "blocks", "keep", "blocks", "keep", "pages", "keep"]
    assert schedule.next(8, 192) == "pages"
    assert schedule.next(9, 0) == "keep"


def test_sampling_on_the_device_follows_the_probabilities() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0])
    sampler = Sampler(temperature=1.0, seed=3)
    counts = torch.bincount(torch.cat([sampler.draw(logits) for _ in range(4000)]), minlength=4)
    torch.testing.assert_close(counts / 4000, logits.softmax(-1), rtol=0.1, atol=0.02)
    again = Sampler(temperature=1.0, seed=3)
    assert torch.equal(again.draw(logits), Sampler(temperature=1.0, seed=3).draw(logits))


def test_chunk_on_a_cpu(host: Runner) -> None:
    assert chunk_tokens(host.layout, host.model.config, 10_000, host.device) == 512


def test_triton_in_its_interpreter() -> None:
    """The engine's own calls of the GPU kernels: views, strides and sizes as a GPU gets them."""
    config = HipConfig(
        sink_tokens=64,
        window_tokens=64,
        budget_tokens=64,
        prefill_budget_tokens=64,
        dense_tokens=0,
        candidate_tokens=128,
        query_distance_tokens=100,
    )
    results = []
    for backend in ("cpu", "triton"):
        method = HipMethod(config)
        runner = Runner(wide_model(torch.float32, layers=1), backend=backend)
        store, logits = after_prompt(runner, method, 400, 410)
        attention = AnswerPass(method)
        results.append((logits, list(generate(runner, store, attention, Sampler(0, 0), logits, 6))))
    torch.testing.assert_close(results[1][0], results[0][0], rtol=1e-4, atol=1e-4)
    assert results[1][1] == results[0][1]


def test_sessions_serve_both_and_damage_is_noticed(
    host: Runner, device: Runner, tmp_path: Path
) -> None:
    """A session written on the device is sound for the CPU and the other way round."""
    asked = request(tmp_path)
    expected = answer(host, read(host, request(None))[0], asked)
    for writer, reader in ((device, host), (host, device)):
        read(writer, dataclasses.replace(asked, cache=CacheConfig(tmp_path, refresh=True)))
        store = SessionStore(tmp_path)
        store.verify(store.find())
        context, events = read(reader, asked)
        assert context.session.reused and not notices(events)
        assert answer(reader, context, asked) == expected
        flip(store.find().path / "kv/001.pages", 3 * device.layout.page_bytes - 5)
        context, events = read(device, asked)
        assert notices(events) == ["session_damaged"]
        assert answer(device, context, asked) == expected


def test_pages_that_cannot_be_written_are_kept_in_memory(
    device: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, data: object, offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    asked = request(tmp_path)
    context, events = read(device, asked)
    assert notices(events) == ["cache_unwritable"]
    assert SessionStore(tmp_path).list() == []
    assert answer(device, context, asked) == answer(device, read(device, request(None))[0], asked)
