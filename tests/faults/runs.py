"""Randomised fault runs: something goes wrong while hip reads or between two questions.

    OMP_NUM_THREADS=1 python -m tests.faults.runs --count 100 --first 0

Each run is a number. It makes a cache, lets something happen to it, and asks again. Whatever
happened: the answers are those of a clean run, nobody sees a traceback, and afterwards the cache
holds sound sessions and nothing else.
"""

import argparse
import gc
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from hipcli.engine.errors import DamagedSessionError
from hipcli.engine.sessions import SessionStore
from hipcli.engine.sessions.disk import Disk
from hipcli.engine.sessions.manifest import MANIFEST, WORTH, read_sealed, write_sealed
from tests.faults.disks import FailingDisk, ShortDisk, full, interrupted, killed, read_only
from tests.faults.world import INTERRUPTED, KEEP, MODES, TRACEBACK, Outcome, Question, World

# A build of the largest context makes about this many changes, tells this many events, and takes
# about this long.
MOST_CHANGES = 50
MOST_EVENTS = 18
MOST_SECONDS = 0.1

_SESSION = re.compile(r"[0-9a-f]{32}(\.partial)?")
_FILES = re.compile(
    r"(manifest|worth|progress)\.json|tokens\.i32|checksums\.u32|kv/\d{3}\.pages|index/\d{3}\.bounds"
)


class Run:
    """One run.

    Args:
        world: the model and the right answers.
        number: seeds everything.
        cache: an empty folder.
    """

    def __init__(self, world: World, number: int, cache: Path) -> None:
        self.world = world
        self.random = random.Random(number)
        self.cache = cache
        self.question = self._any_question()
        self.wrong: list[str] = []
        self.flipped = False

    def _any_question(self) -> Question:
        names = list(self.world.contexts)
        name = self.random.choice(("", "", "novel"))
        return Question(
            self.random.choice(names),
            self.random.choice(MODES),
            name,
            on_device=self.random.random() < 0.25,
            keep=self.random.choice((1.0, 1.0, KEEP)),
        )

    def check(self, outcome: Outcome, question: Question, what: str, *codes: int) -> None:
        """An outcome must have one of the codes, and with code 0 the right answer."""
        if outcome.code not in (0, *codes):
            self.wrong.append(f"{what}: exit code {outcome.code} {outcome.text}")
        if outcome.code == TRACEBACK:
            self.wrong.append(f"{what}: traceback {outcome.text}")
        right = self.world.right[question.context, question.mode, outcome.kept_ratio == 1]
        if outcome.kept_ratio < 1 and question.keep == 1:
            self.wrong.append(f"{what}: asked for all of the context, kept {outcome.kept_ratio}")
        if outcome.code == 0 and outcome.tokens != right:
            self.wrong.append(f"{what}: answered {outcome.tokens}, right is {right}")

    def go(self) -> tuple[str, list[str]]:
        """Run; returns what happened, and what was wrong with how it ended."""
        if self.random.random() < 0.4:
            before = self._any_question()
            self.check(self.world.ask(before, self.cache), before, "before")
        fault = self.random.choice(FAULTS)
        fault(self)
        outcome = self.world.ask(self.question, self.cache, twice=True)
        self.check(outcome, self.question, "again")
        after = replace(outcome, tokens=outcome.first_tokens, kept_ratio=outcome.first_kept_ratio)
        self.check(after, self.question, "after")
        if outcome.cached_tokens != len(self.world.contexts[self.question.context]):
            self.wrong.append(f"again: only {outcome.cached_tokens} tokens were saved")
        # What is kept, all or a part, is always told.
        if [code for code in outcome.notices if code not in ("pruned", "kept_whole")]:
            self.wrong.append(f"again: {outcome.notices}")
        self._check_cache()
        return fault.__name__, self.wrong

    def _check_cache(self) -> None:
        store = SessionStore(self.cache)
        for folder in store.root.iterdir():
            if folder.name == "quarantine":
                continue
            if not _SESSION.fullmatch(folder.name):
                self.wrong.append(f"left behind: {folder.name}")
                continue
            for file in folder.rglob("*"):
                name = file.relative_to(folder).as_posix()
                if file.is_file() and not _FILES.fullmatch(name):
                    self.wrong.append(f"left behind: {folder.name}/{name}")
        left = os.listdir(self.cache / "locks") if (self.cache / "locks").exists() else []
        # A lock that a killed process left goes with the next session that is built.
        if len(left) > 1 or any(store.builder(name.split(".")[0]) for name in left):
            self.wrong.append(f"locks left behind: {left}")
        names = [record.name for record in store.list() if record.name]
        if len(names) != len(set(names)):
            self.wrong.append(f"sessions of one name: {names}")
        self._check_pages(store)

    def _check_pages(self, store: SessionStore) -> None:
        """The pages of the session just used are sound, but for flipped bits nobody looked at."""
        record = store.find()
        try:
            store.verify(record)
        except DamagedSessionError as error:
            if not self.flipped:
                self.wrong.append(f"unsound: {error}")
            store.quarantine(record.path)
            self.check(self.world.ask(self.question, self.cache), self.question, "verified")

    def with_disk(self, disk: Disk, *codes: int) -> None:
        """Ask on a failing disk."""
        outcome = self.world.ask(self.question, self.cache, disk=disk)
        self.check(outcome, self.question, "on the failing disk", *codes)


def kill_at_a_moment(run: Run) -> None:
    child = run.world.start(run.question, run.cache)
    child.kill_in(run.random.uniform(0, MOST_SECONDS), signal.SIGKILL)
    run.check(child.wait(), run.question, "killed", -signal.SIGKILL)


def kill_at_a_change(run: Run) -> None:
    at, after = run.random.randrange(MOST_CHANGES), run.random.random() < 0.5
    run.with_disk(FailingDisk(at, killed, after=after), -signal.SIGKILL)


def kill_twice(run: Run) -> None:
    kill_at_a_change(run)
    kill_at_a_change(run)


def interrupt_at_an_event(run: Run) -> None:
    at = run.random.randrange(MOST_EVENTS)
    outcome = run.world.ask(
        run.question, run.cache, on_event=lambda number: interrupted() if number == at else None
    )
    run.check(outcome, run.question, "interrupted", INTERRUPTED)


def interrupt_at_a_change(run: Run) -> None:
    disk = FailingDisk(run.random.randrange(MOST_CHANGES), interrupted)
    run.with_disk(disk, INTERRUPTED)


def fill_the_disk(run: Run) -> None:
    lasting = run.random.random() < 0.5
    run.with_disk(FailingDisk(run.random.randrange(MOST_CHANGES), full, lasting=lasting))


def fill_the_disk_in_a_write(run: Run) -> None:
    run.with_disk(ShortDisk(run.random.randrange(30)))


def make_it_read_only(run: Run) -> None:
    run.with_disk(FailingDisk(0, read_only, lasting=True))


def kill_and_make_it_read_only(run: Run) -> None:
    kill_at_a_change(run)
    make_it_read_only(run)


def _saved_file(run: Run) -> Path | None:
    """A file of a session; one is made first."""
    if run.random.random() < 0.3:
        kill_at_a_change(run)
    else:
        run.check(run.world.ask(run.question, run.cache), run.question, "saving")
    files = sorted(path for path in (run.cache / "sessions").rglob("*") if path.is_file())
    return run.random.choice(files) if files else None


def flip_a_bit(run: Run) -> None:
    file = _saved_file(run)
    run.flipped = True
    if file is not None and file.stat().st_size:
        data = bytearray(file.read_bytes())
        data[run.random.randrange(len(data))] ^= 1 << run.random.randrange(8)
        file.write_bytes(data)


def flip_a_bit_on_a_read_only_disk(run: Run) -> None:
    flip_a_bit(run)
    make_it_read_only(run)


def spoil_a_file(run: Run) -> None:
    file = _saved_file(run)
    if file is None:
        return
    # Nobody looks at the record of pages' worth before something is pruned.
    run.flipped = file.name == WORTH
    size = file.stat().st_size
    how = run.random.choice(("cut", "empty", "gone", "noise", "folder", "longer"))
    if how == "cut":
        os.truncate(file, run.random.randrange(size) if size else 0)
    elif how == "empty":
        os.truncate(file, 0)
    elif how == "noise":
        file.write_bytes(run.random.randbytes(size))
    elif how == "longer":
        os.truncate(file, size + 100)
    else:
        file.unlink()
        if how == "folder":
            file.mkdir()


def turn_the_clock_back(run: Run) -> None:
    run.check(run.world.ask(run.question, run.cache), run.question, "saving")
    for folder in (run.cache / "sessions").iterdir():
        later = time.time() + run.random.uniform(1, 1e6)
        os.utime(folder, (later, later))
    other = run._any_question()
    run.check(run.world.ask(other, run.cache), other, "before the clock's time")
    latest = SessionStore(run.cache).find().inputs[0]["name"]
    if latest != other.context:
        run.wrong.append(f"the latest session is {latest}, asked last was {other.context}")


def ask_twice_at_once(run: Run) -> None:
    other = run.random.choice((run.question, run._any_question()))
    first, second = (
        run.world.start(run.question, run.cache),
        run.world.start(other, run.cache),
    )
    codes: tuple[int, ...] = ()
    if run.random.random() < 0.5:
        first.kill_in(run.random.uniform(0, MOST_SECONDS), signal.SIGKILL)
        codes = (-signal.SIGKILL,)
    run.check(first.wait(), run.question, "first of two", *codes)
    run.check(second.wait(), other, "second of two")


def meet_other_versions(run: Run) -> None:
    run.check(run.world.ask(run.question, run.cache), run.question, "saving")
    manifest = next((run.cache / "sessions").iterdir()) / MANIFEST
    version = run.random.choice((1, 99))
    write_sealed(manifest, {**read_sealed(manifest), "format_version": version}, Disk())


FAULTS: tuple[Callable[[Run], None], ...] = (
    kill_at_a_moment,
    kill_at_a_moment,
    kill_at_a_change,
    kill_at_a_change,
    kill_twice,
    interrupt_at_an_event,
    interrupt_at_a_change,
    fill_the_disk,
    fill_the_disk_in_a_write,
    make_it_read_only,
    kill_and_make_it_read_only,
    flip_a_bit,
    flip_a_bit,
    flip_a_bit_on_a_read_only_disk,
    spoil_a_file,
    spoil_a_file,
    turn_the_clock_back,
    ask_twice_at_once,
    meet_other_versions,
)


def main(words: list[str]) -> int:
    """Runs `--count` runs from number `--first` on; prints those that end badly."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args(words)
    # A pool of threads does not survive a fork, and PyTorch minds being told so afterwards.
    if torch.get_num_threads() != 1:
        parser.error("set OMP_NUM_THREADS=1")
    world = World()
    # Children share what was loaded: a collection would copy it into each of them.
    gc.freeze()
    failures = 0
    # In memory where there is such a folder: waiting for a disk would be most of the time.
    where = next((folder for folder in ("/dev/shm",) if os.access(folder, os.W_OK)), None)
    for number in range(options.first, options.first + options.count):
        cache = Path(tempfile.mkdtemp(prefix="hip-fault-", dir=where))
        try:
            name, wrong = Run(world, number, cache).go()
        finally:
            shutil.rmtree(cache, ignore_errors=True)
        failures += bool(wrong)
        for line in wrong:
            print(f"run {number}, {name}: {line}", flush=True)
    print(f"{options.count} runs, {failures} failed")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
