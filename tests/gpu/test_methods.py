"""The methods that no kernel was written for: the CPU's logits, tokens and sessions on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hipcli.engine.answering.decoding import generate
from hipcli.engine.answering.sampler import Sampler
from hipcli.engine.methods.reattention import spans
from hipcli.engine.passes import AnswerPass
from tests.engine.methods.test_infllm import answer, read
from tests.engine.test_method_laws import SPARSE
from tests.engine.test_sessions import request
from tests.engine.tiny import prefill_logits, random_ids
from tests.gpu.test_engine import LENGTH, prompt, relative, runners

pytestmark = pytest.mark.gpu
NAMES = ["infllm", "hip-paper", "reattention", "infini"]
# The other one counts the four best keys of every query and head: where two are nearly equal,
# rounding decides, and a whole span may be another one.
STEADY = [name for name in NAMES if name != "reattention"]


@pytest.mark.parametrize("chunk", [LENGTH, 256])
@pytest.mark.parametrize("name", STEADY)
def test_fp32_equals_the_cpu_engine(name: str, chunk: int) -> None:
    host, gpu = runners(torch.float32)
    ids = random_ids(LENGTH)
    expected = prefill_logits(host, SPARSE[name](), ids, 256)
    assert relative(prefill_logits(gpu, SPARSE[name](), ids, chunk), expected) < 1e-3


def test_spans_of_the_same_votes_are_the_cpus() -> None:
    votes = torch.randint(64, 900, (5, 40), generator=torch.Generator().manual_seed(3))
    expected = spans(votes, 64, 900, 6, 32)
    assert torch.equal(spans(votes.cuda(), 64, 900, 6, 32).cpu(), expected)


@pytest.mark.parametrize("name", STEADY)
def test_generated_tokens_are_the_cpus(name: str) -> None:
    tokens = []
    for runner in runners(torch.float32):
        method = SPARSE[name]()
        store, logits = prompt(runner, method, LENGTH + 80)
        sampler = Sampler(0, 0)
        tokens.append(list(generate(runner, store, AnswerPass(method), sampler, logits, 80)))
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("name", NAMES)
def test_bf16_runs_and_is_near(name: str) -> None:
    """Where nothing is selected yet, so that rounding decides nothing."""
    host, _ = runners(torch.float32)
    _, gpu = runners(torch.bfloat16)
    ids = random_ids(LENGTH)
    expected = prefill_logits(host, SPARSE[name](), ids, 256)
    logits = prefill_logits(gpu, SPARSE[name](), ids, 256)
    assert torch.isfinite(logits).all()
    assert relative(logits[:192], expected[:192]) < 0.1


@pytest.mark.parametrize("writer", [0, 1])
def test_sessions_with_representatives_serve_both(tmp_path: Path, writer: int) -> None:
    both = runners(torch.float32)
    ask = request(tmp_path, length=700, answer="attend")
    first, _ = read(both[writer], ask, SPARSE["infllm"]())
    expected = answer(both[writer], first, ask, SPARSE["infllm"]())
    warm, _ = read(both[1 - writer], ask, SPARSE["infllm"]())
    assert warm.session.reused
    assert answer(both[1 - writer], warm, ask, SPARSE["infllm"]()) == expected
