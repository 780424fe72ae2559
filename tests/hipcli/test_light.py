"""What answers at once: no command that needs no model may load torch or transformers."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hipcli.app import run
from hipcli.terminal.console import Console
from tests.engine.evaluation.tiny import model_folder
from tests.hipcli.saved import save

# Run in a fresh interpreter: the command line is taken from argv, the report printed at the end.
PROGRAM = """
import json, sys
from hipcli.app import run
from hipcli.terminal.console import Console
code = run(sys.argv[1:], Console(None, open("/dev/null", "w"), open("/dev/null", "w")))
print("\\n" + json.dumps({"code": code, "modules": list(sys.modules)}))
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

HEAVY = ("torch", "transformers", "triton", "rich", "prompt_toolkit", "jinja2", "tokenizers")

# What a question about a saved session has no use for: a library of models (this one is of a common
# kind), a compiler, readers of documents, drawing, typing, other commands' work, kernels for a GPU.
UNUSED = (
    "transformers",
    "torch._dynamo",
    "torch._inductor",
    "torch.distributed.tensor",
    "accelerate",
    "huggingface_hub",
    "scipy",
    "pandas",
    "rich",
    "prompt_toolkit",
    "pypdf",
    "pypdfium2",
    "cryptography",
    "charset_normalizer",
    "tiktoken",
    "pathspec",
    "gguf",
    "hipcli.runs.chatting",
    "hipcli.documents.folders",
    "hipcli.documents.pdf_reader",
    "hipcli.runs.evaluating",
    "hipcli.terminal.heat_map",
    "hipcli.terminal.manual",
    "hipcli.summary.writing",
    "hipcli.terminal.typing_in",
    "hipcli.engine.benchmarks",
    "hipcli.engine.evaluation",
    "hipcli.engine.methods.window",
    "hipcli.engine.models.gguf.child",
    "hipcli.kernels.sparse_prefill.triton_impl",
)


def report(words: list[str], folder: Path) -> dict[str, Any]:
    """What a fresh `hip` did: its code and the modules it imported."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        cwd=folder,
        capture_output=True,
        check=True,
        timeout=60,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(("words", "code"), LIGHT)
def test_light(words: list[str], code: int, tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("A letter from Ada.\n" * 100)
    found = report(words, tmp_path)
    assert found["code"] == code
    assert not set(HEAVY) & set(found["modules"])


def test_lists_load_no_model(tmp_path: Path) -> None:
    save(tmp_path / "hip-cache", "a.txt", "letters")
    model_folder(tmp_path / "models" / "tiny")
    for words in ("models list --models-dir models", "sessions show letters", "config show"):
        found = report(words.split(), tmp_path)
        assert found["code"] == 0
        assert not {*HEAVY, "hipcli.engine.evaluation"} & set(found["modules"])


def test_a_question_to_a_session_loads_what_it_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text("A letter from Ada.\n" * 20)
    model = str(model_folder(tmp_path / "tiny"))
    words = ["ask", "book.txt", "Who?", "-m", model, "--device", "cpu", "-n", "2"]
    assert run(words, Console(None, io.StringIO(), io.StringIO())) == 0
    found = report(["ask", "--resume", "Who?", "--device", "cpu", "-n", "2"], tmp_path)
    assert found["code"] == 0
    loaded = set(found["modules"])
    assert not set(UNUSED) & loaded
