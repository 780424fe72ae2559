"""What answers at once: no command that needs no model may load torch or transformers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

# Run in a fresh interpreter: the command line is taken from argv, the report printed at the end.
PROGRAM = """
import json, resource, sys
from hipcli.app import run
from hipcli.console import Console
code = run(sys.argv[1:], Console(None, open("/dev/null", "w"), open("/dev/null", "w")))
used = resource.getrusage(resource.RUSAGE_SELF)
heavy = [name for name in ("torch", "transformers", "rich", "triton") if name in sys.modules]
print("\\n" + json.dumps({"code": code, "heavy": heavy, "cpu_s": used.ru_utime + used.ru_stime}))
"""

LIGHT = [
    (["--help"], 0),
    (["--version"], 0),
    (["ask", "--help"], 0),
    (["ask"], 2),
    (["ask", "book.txt", "Who?", "--bogus"], 2),
    (["ask", "nowhere.txt", "Who?", "--context-limit", "none"], 2),
    (["sessions", "list"], 0),
    (["methods"], 0),
    (["eval", "--list"], 0),
    (["eval", "--tasks", "nosuch"], 2),
    (["inspect", "book.txt", "--count", "words"], 0),
]


@pytest.mark.parametrize(("words", "code"), LIGHT)
def test_light(words: list[str], code: int, tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("A letter from Ada.\n" * 100)
    command = [sys.executable, "-c", PROGRAM, *words]
    # A busy machine makes even CPU time waver: one of three attempts must be quick.
    for _ in range(3):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True, timeout=20)
        report = json.loads(done.stdout.splitlines()[-1])
        assert (report["code"], report["heavy"]) == (code, [])
        if report["cpu_s"] < 0.3:
            return
    pytest.fail(f"took {report['cpu_s']:.2f} s of CPU time")
