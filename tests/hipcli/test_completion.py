"""Completion in shells: local state alone, no torch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hipcli.saved import save

# Run in a fresh interpreter, so that what was imported can be told.
PROGRAM = """
import atexit, sys
heavy = lambda: [name for name in ("torch", "transformers") if name in sys.modules]
atexit.register(lambda: print(heavy(), file=sys.stderr))
from hipcli.__main__ import main
main()
"""


def complete(words: str, shell: str = "bash") -> list[str]:
    variables = {**os.environ, "_HIP_COMPLETE": f"complete_{shell}"}
    if shell == "bash":
        variables |= {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    else:
        variables |= {"_TYPER_COMPLETE_ARGS": words, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=variables, capture_output=True, text=True, timeout=20
    )
    assert done.stderr.strip().splitlines()[-1:] == ["[]"], done.stderr
    return done.stdout.split()


@pytest.fixture(autouse=True)
def cache() -> None:
    root = Path(os.environ["HIP_CACHE_DIR"])
    save(root, "a.txt", "letters")
    save(root, "b.txt", "novel")


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("hip summ", ["summarize"]),
        ("hip ask --resume le", ["letters"]),
        ("hip sessions show no", ["novel"]),
        ("hip ask --model smo", ["smollm2"]),
        ("hip models show smo", ["smollm2"]),
        ("hip models calibrate smo", ["smollm2"]),
        ("hip ask --method wi", ["window"]),
        ("hip ask --fit mi", ["middle"]),
    ],
)
def test_bash(words: str, offered: list[str]) -> None:
    assert complete(words) == offered


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells(shell: str) -> None:
    assert "letters" in " ".join(complete("hip ask --resume le", shell))
