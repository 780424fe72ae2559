"""How fast documents become tokens, in how much memory.

    python benchmarks/documents.py [--models-dir DIR] [--model smollm2] [--tokens 1000000]
        [--pages 3000] [--parts folder,lines,pdf]

folder  A folder of books, source code, logs and tables of about so many tokens, read, decoded and
        tokenized in a process of its own on one core: tokens a minute and where the time goes. A
        quarter of it in another process tells how much of the memory grows with the text.
lines   Files that are one line, one word, one blank or one letter: time a megabyte at 1 and 8 MiB.
pdf     A PDF of so many pages and one of a tenth: pages a second, and the most memory that a child
        process took, which must not grow with the pages.

Prints a table for each part and one line of JSON. The aims: 1,000,000 tokens a minute, no line
slower than 2 times its share, no child that takes 1.2 times the memory.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import hipcli  # noqa: E402  (the checkout is put on the path first)

if find_spec("hipcli.engine") is None:
    # A checkout that was not installed keeps the lower houses at its top.
    hipcli.__path__.append(str(ROOT))

MIB = 1 << 20
CHARS_PER_TOKEN = 3.6
FILE_CHARS = 24_000
LINES: dict[str, Callable[[int], str]] = {
    "prose in lines": lambda size: "The barge came in before the fog did.\n" * (size // 38),
    "prose in one line": lambda size: "The barge came in before the fog did. " * (size // 38),
    "one word": lambda size: "".join(Random(1).choices("abcdefgh", k=size)),
    "one letter": lambda size: "x" * size,
    "blanks": lambda size: " " * (size - 1) + "x",
    "newlines": lambda size: "\n" * (size - 1) + "x",
    "brackets": lambda size: "<" * size,
    "base64": lambda size: "".join(Random(2).choices("ABCDwxyz0189+/", k=size)),
    "JSON in one line": lambda size: '{"a":[1,2.5,"x"],"b":null},' * (size // 27),
    "Chinese": lambda size: "\u6e2f\u53e3\u7684\u8239\u5728\u96fe\u524d\u8fdb\u6765" * (size // 9),
}


def main() -> None:
    args = parse_arguments()
    if args.child:
        print(json.dumps(CHILDREN[args.child](args)))
        return
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for part in args.parts.split(","):
            results[part] = PARTS[part](args, Path(folder))
    print(json.dumps(results))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--models-dir", type=Path)
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--pages", type=int, default=3000)
    parser.add_argument("--parts", default="folder,lines,pdf")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    parser.add_argument("--path", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def in_child(args: argparse.Namespace, child: str, path: Path) -> dict[str, Any]:
    """What a part measures of `path` in a process of its own, on one core."""
    command = [sys.executable, __file__, "--child", child, "--path", str(path)]
    command += ["--model", args.model]
    if args.models_dir:
        command += ["--models-dir", str(args.models_dir)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def measure_folder(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The folder at its size, and a quarter of it."""
    found = {}
    for name, tokens in (("quarter", args.tokens // 4), ("whole", args.tokens)):
        path = folder / name
        write_folder(path, int(tokens * CHARS_PER_TOKEN))
        found[name] = in_child(args, "read", path)
    whole, quarter = found["whole"], found["quarter"]
    print(
        f"folder: {whole['tokens']:,} tokens in {whole['files']} files, {whole['total_s']:.1f} s:"
    )
    print(f"  {whole['tokens'] / whole['total_s'] * 60:,.0f} tokens a minute on one core")
    for name, seconds in whole["phases_s"].items():
        print(f"  {name:24}{seconds:8.2f} s{seconds / whole['total_s']:8.0%}")
    growth = (whole["peak_bytes"] - quarter["peak_bytes"]) / (whole["tokens"] - quarter["tokens"])
    print(f"  peak RSS {whole['peak_bytes'] / MIB:.0f} MiB, {growth:.0f} bytes for each token more")
    return {**whole, "bytes_a_token": round(growth, 1)}


def write_folder(path: Path, num_chars: int) -> None:
    """Files of many kinds of about so many characters in all."""
    from hipcli.engine.evaluation.haystacks import HAYSTACKS

    def told(kind: str, suffix: str) -> Iterator[tuple[str, str]]:
        units = HAYSTACKS[kind].units(Random(7))
        while True:
            text, size = [], 0
            while size < FILE_CHARS:
                text.append(next(units))
                size += len(text[-1])
            yield "".join(text), suffix

    def rows() -> Iterator[tuple[str, str]]:
        chance = Random(8)
        while True:
            table = [f"{i},{chance.random():.4f},berth {i % 40},open" for i in range(900)]
            yield "\n".join(table) + "\n", ".csv"
            stamp = [f"2024-05-{i % 28 + 1:02d} INFO pump {i} at {i % 90} bar" for i in range(700)]
            yield "\n".join(stamp) + "\n", ".log"

    kinds = [told("prose", ".md"), told("code", ".py"), told("code", ".c"), rows()]
    number = written = 0
    while written < num_chars:
        text, suffix = next(kinds[number % len(kinds)])
        file = path / f"part{number % 17:02d}" / f"file{number:05d}{suffix}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
        number, written = number + 1, written + len(text)


def read_folder(args: argparse.Namespace) -> dict[str, Any]:
    """Reads and tokenizes a folder as `hip ask` does; seconds of each phase."""
    keep_to_one_core()
    from hipcli.documents import ReadOptions, files, read_sources, secrets, sources
    from hipcli.prompts import assemble

    tokenizer = load(args)
    watch = Watch()
    watch.put_on(sources, "expand", "listing")
    watch.put_on(files, "read_file", "reading bytes")
    for kind in ("text", "markdown", "code"):
        sources.READERS[kind] = watch.timed(sources.READERS[kind], "decoding")
    watch.put_on(secrets, "secret_warnings", "looking for secrets")
    watch.put_on(tokenizer, "encode", "tokenizing")
    watch.put_on(sys.modules["hipcli.prompts.assemble"], "token_lines", "lines of tokens")
    began = time.perf_counter()
    corpus = read_sources([args.path], ReadOptions())
    context = assemble(corpus, tokenizer, None)
    total_s = time.perf_counter() - began
    phases = {**watch.seconds, "the rest": total_s - sum(watch.seconds.values())}
    return {
        "files": len(corpus.documents),
        "tokens": len(context.ids),
        "total_s": round(total_s, 3),
        "phases_s": {name: round(seconds, 3) for name, seconds in phases.items()},
        "peak_bytes": peak_bytes(resource.RUSAGE_SELF),
    }


class Watch:
    """Seconds spent inside of some functions."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def put_on(self, owner: Any, name: str, phase: str) -> None:
        setattr(owner, name, self.timed(getattr(owner, name), phase))

    def timed(self, function: Callable[..., Any], phase: str) -> Callable[..., Any]:
        self.seconds.setdefault(phase, 0.0)

        def call(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[phase] += time.perf_counter() - began

        return call


def keep_to_one_core() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def load(args: argparse.Namespace) -> Any:
    from hipcli.engine.models import resolve
    from hipcli.engine.tokenizer import load_tokenizer

    return load_tokenizer(resolve(args.model, models_dir=args.models_dir).path)


def peak_bytes(who: int) -> int:
    peak = resource.getrusage(who).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def measure_lines(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Hurtful lines, in a process of their own."""
    found = in_child(args, "lines", folder)
    print(f"lines: {'':17}{'tokens':>12}{'s a MiB, 1 MiB':>16}{'8 MiB':>8}")
    for name, row in found.items():
        print(f"  {name:22}{row['tokens']:12,}{row['small_s']:16.3f}{row['large_s']:8.3f}")
    return found


def read_lines(args: argparse.Namespace) -> dict[str, Any]:
    """Seconds a MiB of decoding and tokenizing files of 1 and 8 MiB, made in `args.path`."""
    keep_to_one_core()
    from hipcli.documents import ReadOptions, read_sources
    from hipcli.prompts import assemble

    tokenizer = load(args)
    rows = {}
    for name, tell in LINES.items():
        row: dict[str, Any] = {}
        for key, size in (("small_s", MIB), ("large_s", 8 * MIB)):
            file = Path(args.path) / f"{name} {size}.txt"
            file.write_text(tell(size), "utf-8")
            began = time.perf_counter()
            context = assemble(read_sources([str(file)], ReadOptions()), tokenizer, None)
            row[key] = round((time.perf_counter() - began) / (size / MIB), 4)
            row["tokens"] = len(context.ids)
            file.unlink()
        rows[name] = row
    return rows


def measure_pdf(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """A PDF of `args.pages` pages, and one of a tenth of them."""
    found = {}
    for name, pages in (("tenth", args.pages // 10), ("whole", args.pages)):
        path = folder / f"{name}.pdf"
        path.write_bytes(write_pdf(pages))
        found[name] = in_child(args, "pdf", path)
    whole, tenth = found["whole"], found["tenth"]
    ratio = whole["child_peak_bytes"] / tenth["child_peak_bytes"]
    print(f"pdf: {whole['pages']:,} pages, {whole['bytes'] / MIB:.1f} MiB, {whole['cores']} cores:")
    print(f"  {whole['total_s']:.1f} s, {whole['pages'] / whole['total_s']:,.0f} pages a second")
    print(f"  largest child {whole['child_peak_bytes'] / MIB:.0f} MiB, {ratio:.2f} times a tenth's")
    print(
        f"  parent {whole['peak_bytes'] / MIB:.0f} MiB, of it text {whole['chars'] / MIB:.1f} MiB"
    )
    return {**whole, "child_ratio": round(ratio, 3)}


def write_pdf(pages: int) -> bytes:
    """Pages of generated prose in two fonts, with a running header and a link."""
    from reportlab.pdfgen.canvas import Canvas

    from hipcli.engine.evaluation.haystacks import HAYSTACKS

    units = HAYSTACKS["prose"].units(Random(9))
    buffer = io.BytesIO()
    canvas = Canvas(buffer, invariant=1)
    for number in range(1, pages + 1):
        canvas.setFont("Helvetica-Oblique", 9)
        canvas.drawString(72, 800, f"The Harbour Book, page {number}")
        canvas.linkURL("https://harbour.example/", (72, 795, 200, 810))
        canvas.setFont("Times-Roman", 11)
        text = " ".join("".join(next(units) for _ in range(24)).split())
        for row in range(50):
            canvas.drawString(72, 770 - 14 * row, text[90 * row : 90 * row + 90])
        canvas.showPage()
    canvas.save()
    return buffer.getvalue()


def read_pdf(args: argparse.Namespace) -> dict[str, Any]:
    """Reads a PDF as `hip ask` does, on all cores."""
    from hipcli.documents import ReadOptions, read_sources
    from hipcli.documents.pdf_pages import num_cores

    began = time.perf_counter()
    (document,) = read_sources([args.path], ReadOptions()).documents
    return {
        "pages": len(document.pages),
        "bytes": document.num_bytes,
        "chars": len(document.text),
        "cores": num_cores(),
        "total_s": round(time.perf_counter() - began, 3),
        "peak_bytes": peak_bytes(resource.RUSAGE_SELF),
        "child_peak_bytes": peak_bytes(resource.RUSAGE_CHILDREN),
    }


PARTS = {"folder": measure_folder, "lines": measure_lines, "pdf": measure_pdf}
CHILDREN = {"read": read_folder, "lines": read_lines, "pdf": read_pdf}

if __name__ == "__main__":
    main()
