"""Sections of the CPU run of `benchmarks/engine.py`: each length in a process of its own."""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hipcli.engine.config import CacheConfig, EngineConfig, GenerationConfig
from hipcli.engine.engine import Engine
from hipcli.engine.events import Result
from hipcli.engine.models.folders import weight_files
from hipcli.engine.request import AskRequest, InputRecord

if TYPE_CHECKING:
    from hipcli.engine.benchmarks.engine import Report

ANSWER_TOKENS = 32
QUESTION_TOKENS = 24


def ask(engine: Engine, length: int, cache: Path, answer: str) -> Result:
    """Ask about random tokens; the same tokens for the same length."""
    generator = np.random.default_rng(length)
    ids = generator.integers(100, engine.tokenizer.vocab_size - 100, length, dtype=np.int32)
    request = AskRequest(
        context_ids=ids,
        question_ids=ids[-QUESTION_TOKENS:].tolist(),
        prefix_tokens=16,
        inputs=(InputRecord("random", str(length)),),
        answer=answer,
        generation=GenerationConfig(max_new_tokens=ANSWER_TOKENS),
        cache=CacheConfig(cache),
    )
    results = [event for event in engine.ask(request) if isinstance(event, Result)]
    return results[0]


def peak_mib() -> float:
    """Largest resident size of this process so far."""
    status = Path("/proc/self/status")
    if status.exists():
        # The number below may be the parent's, kept through fork and exec.
        line = next(row for row in status.read_text().splitlines() if row.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def child(options: argparse.Namespace) -> int:
    """One length: read and save, then answer from the session; one line of JSON."""
    length = options.child
    engine = Engine.open(EngineConfig(options.models_dir, model=options.model, device="cpu"))
    with tempfile.TemporaryDirectory() as folder:
        cold = ask(engine, length, Path(folder), "attend")
        peak = peak_mib()
        began = time.perf_counter()
        warm = ask(engine, length, Path(folder), "attend")
        elapsed = time.perf_counter() - began
    weights = sum(file.stat().st_size for file in weight_files(engine.folder.path)) / 2**20
    kv = engine._loaded.runner.layout.num_bytes(length) / 2**20
    print(
        json.dumps(
            {
                "read_tok_s": length / cold.timings["prefill_s"],
                "decode_tok_s": (cold.generated_tokens - 1) / cold.timings["decode_s"],
                "resume_first_token_s": warm.timings["first_token_s"],
                "resume_total_s": elapsed,
                "resumed": warm.cached_tokens == length,
                "peak_mib": peak,
                "weights_mib": weights,
                "kv_mib": kv,
                "rest_mib": peak - weights - kv,
            }
        )
    )
    return 0


def time_length(options: argparse.Namespace, report: Report, length: int) -> None:
    """Run a child for one length and keep what it says."""
    command = [*options.program, "--child", str(length)]
    command += ["--model", options.model, "--models-dir", str(options.models_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-400:])
    numbers = json.loads(done.stdout.splitlines()[-1])
    if not numbers["resumed"]:
        raise AssertionError("the second question did not find the session")
    for name, value in numbers.items():
        if name != "resumed":
            unit = "tok/s" if name.endswith("tok_s") else name.rsplit("_", 1)[-1]
            report.show(f"{length:,} tokens: {name}", value, unit)


def check(options: argparse.Namespace) -> None:
    """The real model with dense attention gives the stock model's logits."""
    from transformers import AutoModelForCausalLM

    from hipcli.engine.forward.runner import Runner
    from hipcli.engine.forward.step import StepInput
    from hipcli.engine.methods.dense import DenseMethod
    from hipcli.engine.models import resolve
    from hipcli.engine.passes import PrefillPass

    folder = resolve(options.model, models_dir=options.models_dir)
    model = AutoModelForCausalLM.from_pretrained(folder.path, dtype=torch.float32).eval()
    ids = torch.randint(100, 1000, (300,), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        stock = model(ids.unsqueeze(0), use_cache=False).logits[0, -1]
    runner = Runner(model)
    store = runner.new_store(300)
    step = StepInput(store, runner.tables, PrefillPass(DenseMethod()), 0)
    logits = runner.logits(ids, step)[-1]
    error = float((logits - stock).norm() / stock.norm())
    if not error < 1e-4:
        raise AssertionError(f"relative error {error:.2e} is over 1e-4")
    print(f"   right  logits of the stock model {error:.1e}")


def stock_model(options: argparse.Namespace) -> Any:
    """The model of Transformers with its SDPA attention, in the dtype that hip takes."""
    from transformers import AutoModelForCausalLM

    from hipcli.engine.models import resolve
    from hipcli.engine.models.loading import pick_dtype

    folder = resolve(options.model, models_dir=options.models_dir)
    dtype = getattr(torch, pick_dtype("auto", "cpu", options.models_dir))
    return AutoModelForCausalLM.from_pretrained(
        folder.path, dtype=dtype, attn_implementation="sdpa"
    ).eval()


def time_dense(options: argparse.Namespace, report: Report, length: int) -> None:
    """The same model with the SDPA attention of Transformers: one length, read and answered."""
    model = stock_model(options)
    ids = torch.randint(100, 1000, (1, length), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        began = time.perf_counter()
        out = model(ids, use_cache=True, logits_to_keep=1)
        read_s = time.perf_counter() - began
        began = time.perf_counter()
        for _ in range(ANSWER_TOKENS - 1):
            token = out.logits[:, -1:].argmax(-1)
            out = model(token, past_key_values=out.past_key_values, use_cache=True)
        decode_s = time.perf_counter() - began
    name = f"{length:,} tokens: transformers SDPA"
    report.show(f"{name} read_tok_s", length / read_s, "tok/s")
    report.show(f"{name} decode_tok_s", (ANSWER_TOKENS - 1) / decode_s, "tok/s")


def run_all(options: argparse.Namespace, report: Report) -> None:
    """The check, then every length, then dense attention at the shortest."""
    report.section("gate", lambda: check(options))
    if "gate" in report.errors:
        return
    for length in options.lengths:
        name = f"{length // 1024}k"
        report.section(name, lambda length=length: time_length(options, report, length))
    shortest = min(options.lengths)
    report.section("sdpa", lambda: time_dense(options, report, shortest))
