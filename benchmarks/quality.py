"""`hip eval` from a checkout that is not installed, many cells with one loading of the model.

    python benchmarks/quality.py --models-dir DIR [--device cuda] [--tasks passkey,alike_8]
        [--haystacks noise,prose,code] [--haystack-files PATH ...] [--lengths 32k,128k]
        [--depths 0.1,0.5,0.9] [--methods hip,bm25] [--answers auto] [--samples N] [--seed N]
        [--set NAME=N ...] [--rounds N] [--looks N] [--keep 1,0.25]
        [--out FILE] [--limit-s S]
    python benchmarks/quality.py --models-dir DIR --fidelity FILE --methods hip,window

Prints a line for each finished cell, the table of means, and one line of JSON. With --out a cell is
on the disk as soon as it is finished, and a second run goes on behind it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import hipcli  # noqa: E402  (the checkout is put on the path first)

if find_spec("hipcli.engine") is None:
    # A checkout that was not installed keeps the lower houses at its top.
    hipcli.__path__.append(str(ROOT))

from hipcli.documents import ReadOptions, read_sources  # noqa: E402
from hipcli.engine.config import KV_DTYPES, LOOK_PAGES, EngineConfig  # noqa: E402
from hipcli.engine.engine import Engine  # noqa: E402
from hipcli.engine.evaluation.fidelity import measure_text  # noqa: E402
from hipcli.engine.evaluation.haystacks import HaystackKind, files_kind  # noqa: E402
from hipcli.engine.evaluation.plan import Plan  # noqa: E402
from hipcli.engine.evaluation.results import append_rows, read_rows  # noqa: E402
from hipcli.engine.evaluation.running import Evaluation  # noqa: E402
from hipcli.engine.evaluation.summary import lines  # noqa: E402
from hipcli.engine.evaluation.tasks import TASKS  # noqa: E402
from hipcli.prompts.whole_text import TextPrompts  # noqa: E402
from hipcli.terminal.heat_map import fidelity_table, length_name, table  # noqa: E402

UNITS = {"k": 1 << 10, "m": 1 << 20}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--models-dir", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--kv-dtype", default="auto", choices=KV_DTYPES)
    parser.add_argument("--tasks", type=words, default=("passkey",))
    parser.add_argument("--haystacks", type=words, default=("noise", "prose", "code"))
    parser.add_argument("--haystack-files", nargs="+", default=[], help="for the haystack 'files'")
    parser.add_argument("--lengths", type=words, default=("8k", "32k"))
    parser.add_argument("--depths", type=words, default=("0.1", "0.3", "0.5", "0.7", "0.9"))
    parser.add_argument("--methods", type=words, default=("hip",))
    parser.add_argument("--answers", type=words, default=("auto",))
    parser.add_argument("--looks", type=int, default=LOOK_PAGES, help="pages looked at again")
    parser.add_argument("--rounds", type=int, default=1, help="how often evidence is looked for")
    parser.add_argument("--keep", type=words, default=("1",), help="parts of the context")
    parser.add_argument(
        "--set",
        nargs="+",
        type=setting,
        default=(),
        metavar="NAME=N",
        help="settings of the methods, such as prefill_budget_tokens=512",
    )
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--fidelity", help="compare methods with dense attention on this text")
    parser.add_argument("--limit-s", type=float, default=1e9, help="begin no cell after this")
    return parser.parse_args()


def words(text: str) -> tuple[str, ...]:
    """Words with commas between them."""
    return tuple(word for word in text.split(",") if word)


def tokens(word: str) -> int:
    """4096, 8k or 1m in tokens."""
    unit = UNITS.get(word[-1].lower())
    return int(float(word[:-1]) * unit) if unit else int(word)


def setting(word: str) -> tuple[str, int]:
    """A field of a method's config and its value."""
    name, value = word.split("=")
    return name, tokens(value)


def plan(args: argparse.Namespace) -> Plan:
    """The grid that was asked for."""
    return Plan(
        tasks=tuple(TASKS) if args.tasks == ("all",) else args.tasks,
        haystacks=args.haystacks,
        lengths=tuple(sorted(map(tokens, args.lengths))),
        depths=tuple(map(float, args.depths)),
        methods=args.methods,
        answers=args.answers,
        samples=args.samples,
        seed=args.seed,
        rounds=args.rounds,
        keeps=tuple(map(float, args.keep)),
    )


def haystack_files(paths: list[str]) -> HaystackKind | None:
    """The user's own text as a haystack."""
    if not paths:
        return None
    corpus = read_sources(paths, ReadOptions())
    return files_kind("\n".join(document.text for document in corpus.documents))


def compare(engine: Engine, path: str, methods: tuple[str, ...]) -> None:
    """The distance of methods to dense attention inside the trained window."""
    text = read_sources([path], ReadOptions()).documents[0].text
    *_, (_, reports) = measure_text(engine, text, methods, {}, engine.trained_tokens)
    print(fidelity_table(reports))
    print(json.dumps({**engine.description, "fidelity": reports}))


def main() -> None:
    args = parse_arguments()
    config = EngineConfig(
        models_dir=args.models_dir,
        model=args.model,
        device=args.device,
        kv_dtype=args.kv_dtype,
        looks=args.looks,
    )
    engine = Engine.open(config)
    if args.fidelity:
        compare(engine, args.fidelity, args.methods)
        return
    run = Evaluation(
        engine,
        TextPrompts(engine.tokenizer),
        plan(args),
        method_settings=dict(args.set),
        files=haystack_files(args.haystack_files),
        limit_s=args.limit_s,
    )
    kept = run.kept(read_rows(args.out) if args.out else [])
    rows, began = kept.rows, time.perf_counter()
    for cell in run.rows(kept.keys):
        if args.out:
            append_rows(args.out, cell)
        rows += cell
        for row in cell:
            print(f"{time.perf_counter() - began:6.0f} s  {line_of(row)}", flush=True)
    if run.out_of_time:
        print("out of time: not all cells were begun")
    means = lines(rows)
    print(table(means))
    shown = [{name: getattr(line, name) for name in line.__slots__} for line in means]
    print(json.dumps({**engine.description, "lines": shown}))


def line_of(row: dict) -> str:
    """A finished cell in words; wrong answers are quoted."""
    where = f"{row['method']} {row['answer']}: {row['task']} {row['wording']}".rstrip()
    where += f" in {row['haystack']}, {length_name(row['length'])}, depth {row['depth']}"
    if "error" in row:
        return f"{where}: {row['error']}"
    wrong = [q["answer"][:60] for q in row["questions"] if q["score"] < 1]
    said = f", said {wrong}" if wrong else ""
    return f"{where}: score {row['score']:.2f}, recall@1 {row['recall_1']}{said}"


if __name__ == "__main__":
    main()
