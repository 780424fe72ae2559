"""Completion in shells: local state alone, no torch."""

import os
import pty
import select
import shutil
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


@pytest.fixture
def shell_with_hip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shells find `hip` and nobody's own configuration."""
    program = tmp_path / "bin" / "hip"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nfrom hipcli.__main__ import main\nmain()\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))


def needs(shell: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"{shell} is not installed")


def output_of(*words: str) -> list[str]:
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True)
    return done.stdout.split()


@needs("bash")
def test_in_bash_itself(shell_with_hip: None) -> None:
    script = """
        eval "$(_HIP_COMPLETE=source_bash hip)"
        complete -p hip
        COMP_WORDS=(hip ask --resume le) COMP_CWORD=3
        _hip_completion hip
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    *registered, offered = output_of("bash", "--norc", "-c", script)
    assert registered[-2:] == ["_hip_completion", "hip"]
    assert offered == "letters"


@needs("fish")
def test_in_fish_itself(shell_with_hip: None) -> None:
    script = """
        _HIP_COMPLETE=source_fish hip | source
        complete -C 'hip ask --resume le'
        complete -C 'hip ask --method wi'
    """
    offered = output_of("fish", "--no-config", "-c", script)
    assert offered[:2] == ["letters", "a.txt"] and "window" in offered


@needs("zsh")
def test_in_zsh_itself(shell_with_hip: None) -> None:
    """A person presses the tab key at a terminal."""
    pid, leader = pty.fork()
    if pid == 0:
        os.execvp("zsh", ["zsh", "-f", "-i"])
    begin = "PS1='ready> '; autoload -U compinit; compinit -D -u; "
    begin += 'eval "$(_HIP_COMPLETE=source_zsh hip)"; echo regi""stered\n'
    os.write(leader, begin.encode())
    seen_in(leader, b"registered\r\n")
    os.write(leader, b"hip sessions show no\t")
    seen_in(leader, b"novel")
    os.write(leader, b"\x15exit\n")
    assert os.waitpid(pid, 0)[1] == 0
    os.close(leader)


def seen_in(leader: int, text: bytes) -> None:
    """Reads a terminal until it shows `text`."""
    shown = b""
    while text not in shown:
        assert select.select([leader], [], [], 20)[0], shown
        shown += os.read(leader, 65536)
