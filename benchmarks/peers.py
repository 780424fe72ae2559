"""hip beside llama.cpp and plain Transformers on this machine's CPU: same document, same run.

    python benchmarks/peers.py --models-dir DIR --gguf FILE [--llama-python PYTHON]
        [--lengths 2k 8k 32k] [--rounds 3] [--peers hip hip-int8 llama.cpp transformers]

Every measurement is a process of its own and the peers take turns, so that what else the machine
does meets all of them. A peer reads the first tokens of one generated book and goes on greedily
for 32 more. hip answers in its default way at each length, and once more without rereading
(`attend`, over the whole context, as the others do). llama.cpp runs the GGUF file the model of hip
was converted from, through llama-cpp-python with flash attention; `--llama-python` is an
interpreter that has it, if this one does not. It multiplies quantised weights with inputs of 8
bits; `hip-int8` does so as well (`--weights int8`), `hip` computes in bf16. Not part of CI.

Prints medians over the rounds, what they are of each peer's, and one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
UNITS = {"k": 1 << 10, "m": 1 << 20}
OURS = ("hip", "hip-int8")
PEERS = (*OURS, "llama.cpp", "transformers")
ANSWER_TOKENS = 32
QUESTION_TOKENS = 24
BATCH_TOKENS = 512
Numbers = dict[str, float]


def import_hip() -> None:
    """Put the checkout on the path, installed or not. llama.cpp's process does without."""
    sys.path[:0] = [str(ROOT)]
    import hipcli

    if find_spec("hipcli.engine") is None:
        # A checkout that was not installed keeps the lower houses at its top.
        hipcli.__path__.append(str(ROOT))
    from hipcli.engine.threads import prepare_threads

    prepare_threads(os.environ)


def run_hip(ids: np.ndarray, options: argparse.Namespace, weights: str = "auto") -> Numbers:
    """Read, save and answer; then answer the saved session over its whole context."""
    import_hip()
    from hipcli.engine.config import CacheConfig, EngineConfig, GenerationConfig
    from hipcli.engine.engine import Engine
    from hipcli.engine.events import Result
    from hipcli.engine.request import AskRequest, InputRecord

    config = EngineConfig(options.models_dir, model=options.model, device="cpu", weights=weights)
    engine = Engine.open(config)

    def ask(answer: str, cache: Path) -> Result:
        request = AskRequest(
            context_ids=ids[:-QUESTION_TOKENS],
            question_ids=ids[-QUESTION_TOKENS:].tolist(),
            prefix_tokens=16,
            inputs=(InputRecord("book", str(len(ids))),),
            answer=answer,
            generation=GenerationConfig(max_new_tokens=ANSWER_TOKENS),
            cache=CacheConfig(cache),
        )
        return next(event for event in engine.ask(request) if isinstance(event, Result))

    with tempfile.TemporaryDirectory() as folder:
        cold = ask("auto", Path(folder))
        whole = ask("attend", Path(folder))
    found = {"read_tok_s": (len(ids) - QUESTION_TOKENS) / cold.timings["prefill_s"]}
    for name, result in (("decode_tok_s", whole), ("decode_auto_tok_s", cold)):
        if result.generated_tokens > 1:
            found[name] = (result.generated_tokens - 1) / result.timings["decode_s"]
    return found


def run_hip_int8(ids: np.ndarray, options: argparse.Namespace) -> Numbers:
    """The same with weights and inputs of 8 bits."""
    return run_hip(ids, options, "int8")


def run_llama(ids: np.ndarray, options: argparse.Namespace) -> Numbers:
    """llama.cpp: evaluate the tokens, then one by one."""
    from llama_cpp import Llama

    threads = len(os.sched_getaffinity(0))
    model = Llama(
        str(options.gguf),
        n_ctx=len(ids) + 2 * ANSWER_TOKENS,
        n_batch=BATCH_TOKENS,
        n_threads=threads,
        n_threads_batch=threads,
        flash_attn=True,
        verbose=False,
    )
    began = time.perf_counter()
    model.eval(ids.tolist())
    read_s = time.perf_counter() - began
    began = time.perf_counter()
    for _ in range(ANSWER_TOKENS - 1):
        model.eval([int(model.sample(temp=0.0))])
    decode_s = time.perf_counter() - began
    return {"read_tok_s": len(ids) / read_s, "decode_tok_s": (ANSWER_TOKENS - 1) / decode_s}


def run_transformers(ids: np.ndarray, options: argparse.Namespace) -> Numbers:
    """Transformers with its SDPA attention and cache, in chunks, in hip's dtype."""
    import_hip()
    import torch

    from hipcli.engine.benchmarks.engine_cpu import stock_model

    model = stock_model(options)
    tokens = torch.from_numpy(ids.astype(np.int64)).unsqueeze(0)
    past = None
    with torch.inference_mode():
        began = time.perf_counter()
        for chunk in tokens.split(4 * BATCH_TOKENS, dim=1):
            out = model(chunk, past_key_values=past, use_cache=True, logits_to_keep=1)
            past = out.past_key_values
        read_s = time.perf_counter() - began
        began = time.perf_counter()
        for _ in range(ANSWER_TOKENS - 1):
            token = out.logits[:, -1:].argmax(-1)
            out = model(token, past_key_values=past, use_cache=True)
        decode_s = time.perf_counter() - began
    return {"read_tok_s": len(ids) / read_s, "decode_tok_s": (ANSWER_TOKENS - 1) / decode_s}


RUN = {
    "hip": run_hip,
    "hip-int8": run_hip_int8,
    "llama.cpp": run_llama,
    "transformers": run_transformers,
}


def peak_mib() -> float:
    """Largest resident size of this process so far; 0 where the system does not say."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0.0
    row = next(row for row in status.read_text().splitlines() if row.startswith("VmHWM"))
    return int(row.split()[1]) / 1024


def child(options: argparse.Namespace) -> int:
    """One peer at one length; one line of JSON."""
    ids = np.load(options.tokens)[: options.lengths[0]]
    numbers = RUN[options.child](ids, options)
    print(json.dumps({**numbers, "peak_mib": peak_mib()}))
    return 0


def measure(options: argparse.Namespace, tokens: Path, peer: str, length: int) -> Numbers:
    """Run a child.

    Raises:
        RuntimeError: it failed; the end of what it said.
    """
    python = options.llama_python if peer == "llama.cpp" else sys.executable
    command = [python, __file__, "--child", peer, "--tokens", str(tokens)]
    command += ["--lengths", str(length), "--model", options.model]
    command += ["--models-dir", str(options.models_dir), "--gguf", str(options.gguf)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{peer} at {length:,} tokens: {done.stderr.strip()[-600:]}")
    numbers: Numbers = json.loads(done.stdout.splitlines()[-1])
    return numbers


def write_tokens(options: argparse.Namespace, path: Path) -> None:
    """Tokens of a generated book, as many as the longest run needs, int32."""
    from hipcli.engine.models import resolve
    from hipcli.engine.tokenizer import load_tokenizer

    most = max(options.lengths)
    book = path.with_suffix(".txt")
    command = [sys.executable, str(ROOT / "samples" / "make_book.py"), "--tokens", str(most * 2)]
    subprocess.run([*command, "-o", str(book)], check=True, capture_output=True)
    tokenizer = load_tokenizer(resolve(options.model, models_dir=options.models_dir).path)
    ids = tokenizer.encode(book.read_text(encoding="utf-8")).ids
    if len(ids) < most:
        raise RuntimeError(f"the book has {len(ids):,} tokens, {most:,} are wanted")
    np.save(path, np.asarray(ids[:most], np.int32))


def compare(options: argparse.Namespace) -> dict[str, Numbers]:
    """All peers at all lengths in turns; medians by "peer length"."""
    import_hip()
    medians: dict[str, Numbers] = {}
    with tempfile.TemporaryDirectory(prefix="hip-peers-") as folder:
        tokens = Path(folder) / "tokens.npy"
        write_tokens(options, tokens)
        for length in options.lengths:
            runs: dict[str, list[Numbers]] = {peer: [] for peer in options.peers}
            for _ in range(options.rounds):
                for peer in options.peers:
                    runs[peer].append(measure(options, tokens, peer, length))
                    told = ", ".join(f"{k} {v:,.1f}" for k, v in runs[peer][-1].items())
                    print(f"   {peer} at {length:,}: {told}", flush=True)
            for peer, rows in runs.items():
                medians[f"{peer} {length}"] = {
                    name: statistics.median(row[name] for row in rows) for name in rows[0]
                }
    return medians


def show(options: argparse.Namespace, medians: dict[str, Numbers]) -> None:
    """The table: medians, and hip as a multiple of each peer."""
    for length in options.lengths:
        print(f"{length:,} tokens")
        ours = [name for name in OURS if name in options.peers]
        for peer in options.peers:
            numbers = medians[f"{peer} {length}"]
            told = f"read {numbers['read_tok_s']:7,.0f} tok/s, "
            told += f"decode {numbers['decode_tok_s']:5.1f} tok/s, {numbers['peak_mib']:7,.0f} MiB"
            for name in ours if peer not in OURS else ():
                fast = medians[f"{name} {length}"]
                ratios = [fast[rate] / numbers[rate] for rate in ("read_tok_s", "decode_tok_s")]
                told += f"   {name} reads {ratios[0]:.1f}x, decodes {ratios[1]:.1f}x as fast"
            print(f"  {peer:13s} {told}")


def tokens_of(text: str) -> int:
    """Tokens in a length such as 4096, 8k or 1m."""
    unit = UNITS.get(text[-1].lower())
    return int(float(text[:-1]) * unit) if unit else int(text)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models-dir", type=Path, required=True)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--gguf", type=Path, required=True, help="what llama.cpp runs")
    parser.add_argument("--llama-python", default=sys.executable)
    parser.add_argument("--lengths", type=tokens_of, nargs="+", default=[2048, 8192, 32768])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--child", choices=PEERS, help=argparse.SUPPRESS)
    parser.add_argument("--tokens", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    options = parse_arguments()
    if options.child:
        return child(options)
    medians = compare(options)
    show(options, medians)
    print(json.dumps({"rounds": options.rounds, "medians": medians}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
