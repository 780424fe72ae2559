"""Times reading and answering on several ranks, and compares the bytes sent with the sums.

    hip bench distributed --device cpu -- --ranks 1 2 4 --length 8192

Every number of ranks gets the same text and the same question. In fp32, over a shorter text, the
answers must be those of one rank; then the dtype of the product is timed, where sums of parts round
otherwise and of two tokens as likely either may come. Prints a table and one line of JSON. Ratios
are to the first row, so `--ranks 1 2` says what a second rank brings. `--device cuda` wants a GPU
for each rank; `peak GB` is then the most that rank 0 held of its GPU, weights and all. With `--one-
gpu` all ranks share a GPU by way of the host, as processes of one CPU share its cores: then bytes
and memory count, not speed.
"""

from __future__ import annotations

import argparse
import gc
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hipcli.engine.config import EngineConfig, GenerationConfig
from hipcli.engine.distributed.engine import DistributedEngine
from hipcli.engine.distributed.starting import Crew
from hipcli.engine.distributed.wire import WireShape
from hipcli.engine.engine import Engine
from hipcli.engine.events import Phase, Result
from hipcli.engine.request import AskRequest

QUESTION_TOKENS = 24
CHECKED_TOKENS = 16384


def request_of(engine: Engine, length: int, new_tokens: int) -> AskRequest:
    """A question about random tokens, the same for the same length; nothing is guessed."""
    generator = np.random.default_rng(length)
    ids = generator.integers(100, engine.tokenizer.vocab_size - 100, length, dtype=np.int32)
    return AskRequest(
        context_ids=ids,
        question_ids=ids[-QUESTION_TOKENS:].tolist(),
        prefix_tokens=16,
        answer="attend",
        generation=GenerationConfig(max_new_tokens=new_tokens, draft_tokens=0),
    )


def measured(
    config: EngineConfig, ranks: int, length: int, new_tokens: int, one_gpu: bool = False
) -> dict[str, Any]:
    """One number of ranks: speeds, and the bytes per token as counted and as they must be."""
    if ranks == 1:
        engine = Engine.open(config)
        _begin_peak(config)
        *_, result = engine.ask(request_of(engine, length, new_tokens))
        return _row(result, ranks) | {"peak_bytes": _peak(config)}
    shared = DistributedEngine.over(config, Crew(ranks, one_gpu=one_gpu))
    _begin_peak(config)
    sent: dict[str, int] = {}
    error: BaseException | None = None
    try:
        for event in shared.ask(request_of(shared, length, new_tokens)):
            if isinstance(event, Phase) and event.name == "answer":
                sent = shared.team.run("traffic")
            if isinstance(event, Result):
                result = event
        answering, runner = shared.team.run("traffic"), shared.runner
    except BaseException as raised:
        error = raised
        raise
    finally:
        shared.close(error)
    layout = runner.layout
    shape = WireShape(
        layout.num_layers, runner.num_heads, layout.head_dim, layout.dtype.itemsize, ranks
    )
    # The last token of an answer is never run.
    alike = QUESTION_TOKENS + result.generated_tokens - 1
    return _row(result, ranks) | {
        "peak_bytes": _peak(config),
        "reading_bytes": (sent["queries"] + sent["partials"]) / length,
        "reading_bytes_computed": shape.reading_bytes,
        "reading_selection_bytes": sent["selection"] / length,
        "answering_bytes": answering["partials"] / alike,
        "answering_bytes_computed": shape.answering_bytes,
        "answering_selection_bytes": (answering["selection"] + answering["votes"]) / alike,
    }


def _begin_peak(config: EngineConfig) -> None:
    """What an earlier row held must not count for the next one."""
    if config.device != "cpu":
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _peak(config: EngineConfig) -> int | None:
    """The most bytes of tensors that this process had on its GPU; None on a CPU."""
    return None if config.device == "cpu" else torch.cuda.max_memory_allocated()


def with_ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with reading and decoding as many times as fast as in the first one."""
    first = rows[0]
    return [
        row
        | {
            "prefill_ratio": row["prefill_tokens_per_s"] / first["prefill_tokens_per_s"],
            "decode_ratio": first["decode_ms"] / row["decode_ms"],
        }
        for row in rows
    ]


def _row(result: Result, ranks: int) -> dict[str, Any]:
    steps = max(result.generated_tokens - 1, 1)
    return {
        "ranks": ranks,
        "prefill_tokens_per_s": result.context_tokens / max(result.timings["prefill_s"], 1e-9),
        "decode_ms": result.timings["decode_s"] / steps * 1000,
        "answer": result.answer,
    }


def main(words: list[str] | None = None) -> int:
    """Run it; 1 if an answer or a count is not what it must be."""
    parser = argparse.ArgumentParser(prog="hip bench distributed", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--models-dir", type=Path, required=True)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--new-tokens", type=int, default=16)
    parser.add_argument("--one-gpu", action="store_true", help="the ranks share a GPU")
    options = parser.parse_args(words)
    if options.one_gpu and options.device == "cpu":
        parser.error("--one-gpu wants --device cuda.")
    config = EngineConfig(options.models_dir, options.model, device=options.device)
    asked = options.new_tokens, options.one_gpu
    exact, checked_tokens = replace(config, dtype="float32"), min(options.length, CHECKED_TOKENS)
    checked = [measured(exact, ranks, checked_tokens, *asked) for ranks in options.ranks]
    rows = with_ratios([measured(config, ranks, options.length, *asked) for ranks in options.ranks])
    wrong = [row["ranks"] for row in checked if row["answer"] != checked[0]["answer"]]
    wrong += [row["ranks"] for row in (*checked, *rows) if not counted_right(row)]
    wrong = sorted(set(wrong))
    print(f"fp32, {checked_tokens:,} tokens: {f'wrong: {wrong}' if wrong else 'the same answers'}")
    print(
        f"{'ranks':>5} {'read tok/s':>10} {'ratio':>6} {'decode ms':>9} {'ratio':>6} "
        f"{'peak GB':>7}  bytes a token: counted (computed)"
    )
    for row in rows:
        told = "none"
        if row["ranks"] > 1:
            told = (
                f"reading {row['reading_bytes']:,.0f} ({row['reading_bytes_computed']:,}), "
                f"answering {row['answering_bytes']:,.0f} ({row['answering_bytes_computed']:,})"
            )
        speed, decode_ms = row["prefill_tokens_per_s"], row["decode_ms"]
        peak = "-" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 1e9:.1f}"
        print(
            f"{row['ranks']:>5} {speed:>10,.0f} {row['prefill_ratio']:>6.2f} {decode_ms:>9.1f} "
            f"{row['decode_ratio']:>6.2f} {peak:>7}  {told}"
        )
    from hipcli.engine.benchmarks.engine import environment

    facts = environment(options.device) | {"length": options.length, "wrong": wrong}
    facts |= {"one_gpu": options.one_gpu, "checked_tokens": checked_tokens}
    for row in rows:
        row["same_answer"] = row["answer"] == rows[0]["answer"]
    kept = [{k: v for k, v in row.items() if k != "answer"} for row in rows]
    print(json.dumps(facts | {"rows": kept}))
    return 1 if wrong else 0


def counted_right(row: dict[str, Any]) -> bool:
    """True if the bytes are those that must be."""
    if row["ranks"] == 1:
        return True
    reading, answering = row["reading_bytes"], row["answering_bytes"]
    computed = row["reading_bytes_computed"], row["answering_bytes_computed"]
    return (reading, answering) == computed
