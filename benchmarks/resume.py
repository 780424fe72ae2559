"""First token of a follow-up: a long session beside a short one, from the start of the process.

    python benchmarks/resume.py --models-dir DIR [--long 1m] [--short 8k] [--rounds 5]

Both sessions are asked with `--answer attend --rounds 0` in turns, after the same warm-up: that is
what the first token of a long session costs beyond that of a short one. Then each is asked in the
default mode, whose vote compares every key. Each question is a process of its own. The time ends
with the first character on stdout.

Reading a million tokens takes half an hour, and how long an answer takes does not depend on what
keys and values are. So only the short document is read to its end. Of the long one the text is
tokenized and its session begun by `hip ask`; the pages that are missing then are those of the short
session, over and over, each with its checksum. The cache folder takes 23 GB for a million tokens of
SmolLM2 and is removed at the end, unless `--cache` names one to keep.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import hipcli  # noqa: E402  (the checkout is put on the path first)

if find_spec("hipcli.engine") is None:
    # A checkout that was not installed keeps the lower houses at its top.
    hipcli.__path__.append(str(ROOT))

from hipcli.engine.sessions import SessionStore  # noqa: E402
from hipcli.engine.sessions.disk import Disk  # noqa: E402
from hipcli.engine.sessions.manifest import Manifest  # noqa: E402
from hipcli.engine.sessions.session import Session  # noqa: E402
from hipcli.engine.store.checks import KEYS, SUMMARY, VALUES, PageChecks  # noqa: E402
from hipcli.engine.store.layout import (  # noqa: E402
    PAGE_TOKENS,
    checksum_file,
    layer_files,
    num_pages,
)

UNITS = {"k": 1 << 10, "m": 1 << 20}
QUESTION = "Who wrote the letter, and to whom was it sent?"
# In the default mode; the first one may wait for the disk.
VOTING_ROUNDS = 3
# Pages written at once.
PIECE_PAGES = 512


@dataclass(frozen=True, slots=True)
class Asked:
    """One question: seconds to the first character, and the largest resident size."""

    first_s: float
    rss_mib: float


@dataclass(slots=True)
class Machine:
    """hip as a child process, with its own cache.

    Args:
        cache: folder of sessions.
        models_dir, model: which model.
    """

    cache: Path
    models_dir: Path
    model: str

    def command(self, *words: str) -> list[str]:
        """A command line of hip."""
        hip = [sys.executable, "-m", "hipcli", *words, "--cache-dir", str(self.cache)]
        return [*hip, "--models-dir", str(self.models_dir), "--model", self.model]

    def read(self, book: Path, name: str) -> tuple[str, ...]:
        """Words of the command that reads a book into a session of that name."""
        whole = ("--keep", "full", "--cache-max-size", "1000GiB")
        return ("ask", str(book), QUESTION, "-q", "--name", name, "-n", "1", *whole)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start it."""
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.Popen(
            self.command(*words), cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def run(self, *words: str) -> bytes:
        """Run it; returns what it prints."""
        child = self.start(*words)
        out, err = child.communicate()
        if child.returncode:
            raise RuntimeError(f"hip {' '.join(words)}: {err.decode(errors='replace')[-600:]}")
        return out

    def ask(self, name: str, *words: str) -> Asked:
        """Ask a session by its name."""
        began = time.perf_counter()
        child = self.start("ask", "--resume", name, QUESTION, "-q", "-n", "4", *words)
        assert child.stdout is not None and child.stderr is not None
        first = child.stdout.read(1)
        elapsed = time.perf_counter() - began
        err = child.stderr.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode or not first:
            raise RuntimeError(err.decode(errors="replace")[-600:])
        return Asked(elapsed, usage.ru_maxrss / 1024)


def write_book(path: Path, tokens: int) -> None:
    """A generated book of about so many tokens."""
    command = [sys.executable, str(ROOT / "samples" / "make_book.py"), "--tokens", str(tokens)]
    subprocess.run([*command, "-o", str(path)], check=True, capture_output=True)


def begin(machine: Machine, book: Path, name: str) -> Path:
    """Let hip begin to read a book, and stop it once its session is there."""
    child = machine.start(*machine.read(book, name))
    root = machine.cache / "sessions"
    while not (found := list(root.glob("*.partial"))):
        if child.poll() is not None:
            assert child.stderr is not None
            raise RuntimeError(child.stderr.read().decode(errors="replace")[-600:])
        time.sleep(0.2)
    time.sleep(2)
    child.send_signal(signal.SIGINT)
    child.communicate()
    return found[0]


def fill(folder: Path, donor: Path) -> None:
    """Complete a session that was begun with the full pages of another one, over and over."""
    disk = Disk()
    session = Session.open(folder, disk)
    manifest, short = session.manifest, Manifest.read(donor)
    pages, given = num_pages(manifest.context_tokens), short.context_tokens // PAGE_TOKENS
    first = session.tokens_done // PAGE_TOKENS
    checks = PageChecks(
        checksum_file(folder), pages, manifest.num_layers, manifest.seed, writable=True
    )
    for layer in range(manifest.num_layers):
        for place, size in enumerate((manifest.page_bytes, manifest.summary_bytes)):
            source = layer_files(donor, layer)[place]
            rows = np.fromfile(source, np.uint8, given * size).reshape(given, size)
            with open(layer_files(folder, layer)[place], "r+b") as file:
                file.seek(first * size)
                for start in range(first, pages, PIECE_PAGES):
                    which = np.arange(start, min(start + PIECE_PAGES, pages)) % given
                    piece = rows[which]
                    file.write(piece)
                    halves = piece.reshape(len(piece), 2, -1)
                    if place == 0:
                        checks.record(KEYS, layer, start, halves[:, 0])
                        checks.record(VALUES, layer, start, halves[:, 1])
                    else:
                        checks.record(SUMMARY, layer, start, piece)
    session.checkpoint(manifest.context_tokens)
    session.finish()


def measure(
    machine: Machine, lengths: dict[str, int], rounds: int, books: Path
) -> dict[str, float]:
    """Build both sessions, ask them in turns, print what is found, and return it."""
    (short, short_tokens), (long, long_tokens) = lengths.items()
    for name, tokens in lengths.items():
        write_book(books / f"{name}.txt", tokens)
    store = SessionStore(machine.cache)
    began = time.perf_counter()
    machine.run(*machine.read(books / f"{short}.txt", short))
    print(
        f"read {short} ({short_tokens:,} tokens): {time.perf_counter() - began:.1f} s", flush=True
    )
    if not any(record.name == long and record.complete for record in store.list()):
        began = time.perf_counter()
        fill(begin(machine, books / f"{long}.txt", long), store.find(short).path)
        print(f"made {long}: {time.perf_counter() - began:.1f} s", flush=True)
    times: dict[str, list[Asked]] = {name: [] for name in lengths}
    for turn in range(rounds + 1):
        for name in lengths:
            asked = machine.ask(name, "--answer", "attend", "--rounds", "0")
            # The first of each is the warm-up.
            if turn:
                times[name].append(asked)
    numbers: dict[str, float] = {}
    for name in lengths:
        first = [asked.first_s for asked in times[name]]
        numbers[f"{name}_first_s"] = statistics.median(first)
        numbers[f"{name}_rss_mib"] = max(asked.rss_mib for asked in times[name])
        spread = ", ".join(f"{value:.2f}" for value in first)
        rss, median = numbers[f"{name}_rss_mib"], numbers[f"{name}_first_s"]
        print(f"{name}: first token {median:.2f} s ({spread}), RSS {rss:,.0f} MiB", flush=True)
    numbers["ratio"] = numbers[f"{long}_first_s"] / numbers[f"{short}_first_s"]
    # What other programs take of the machine only ever adds.
    least = {name: min(asked.first_s for asked in times[name]) for name in lengths}
    numbers["ratio_of_least"] = least[long] / least[short]
    told = f"{numbers['ratio']:.2f}, of the shortest times {numbers['ratio_of_least']:.2f}"
    print(f"ratio of medians {told}", flush=True)
    for name in lengths:
        found = [machine.ask(name).first_s for _ in range(VOTING_ROUNDS)]
        numbers[f"{name}_voting_first_s"] = statistics.median(found)
        told = ", ".join(f"{value:.2f}" for value in found)
        print(f"{name} in the default mode, which compares every key: {told} s", flush=True)
    for name in lengths:
        told = json.loads(machine.run("inspect", str(books / f"{name}.txt"), "--json"))
        announced, used = told["cache"]["bytes_needed"], store.find(name).num_bytes
        numbers[f"{name}_disk_over_announced"] = used / announced - 1
        print(
            f"{name}: {used:,} bytes on disk, {announced:,} announced ({used / announced - 1:+.2%})"
        )
    return numbers


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models-dir", type=Path, required=True)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--long", type=tokens_of, default=tokens_of("1m"))
    parser.add_argument("--short", type=tokens_of, default=tokens_of("8k"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cache", type=Path, help="keep the sessions here")
    return parser.parse_args()


def tokens_of(text: str) -> int:
    """Tokens in a length such as 4096, 8k or 1m."""
    unit = UNITS.get(text[-1].lower())
    return int(float(text[:-1]) * unit) if unit else int(text)


def main() -> int:
    options = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="hip-resume-") as folder:
        cache = (options.cache or Path(folder) / "cache").resolve()
        machine = Machine(cache, options.models_dir.resolve(), options.model)
        lengths = {"short": options.short, "long": options.long}
        numbers = measure(machine, lengths, options.rounds, Path(folder))
    print(json.dumps({"short_tokens": options.short, "long_tokens": options.long, **numbers}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
