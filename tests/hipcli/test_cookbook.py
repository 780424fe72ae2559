"""Every line of `docs/cookbook.md` runs, with a tiny model and the real engine."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.models import toy_models
from tests.hipcli.forked_hip import serving

COOKBOOK = Path(__file__).parents[2] / "docs" / "cookbook.md"
BLOCK = re.compile(r"```sh\n(.*?)```", re.DOTALL)

CLIENT = """#!{python}
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from tests.hipcli.forked_hip import start
sys.exit(start(Path({path!r}), sys.argv[1:], [0, 1, 2]).code())
"""


def lines() -> list[str]:
    return [line for block in BLOCK.findall(COOKBOOK.read_text()) for line in block.splitlines()]


@pytest.fixture
def kitchen(tmp_path: Path) -> Path:
    """A folder with the documents of the cookbook."""
    folder = tmp_path / "kitchen"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "shop.py").write_text("RETRIES = 3\n")
    (folder / "book.txt").write_text("A letter from Ada.\nTo Charles.\nSent in June.\n" * 4)
    (folder / "questions.jsonl").write_text('{"id": 1, "question": "Who wrote it?"}\n"When?"\n')
    return folder


def test_every_line_runs(kitchen: Path, tmp_path: Path) -> None:
    model = toy_models.llama(tmp_path / "model")
    programs = tmp_path / "bin"
    programs.mkdir()
    root, path = str(Path(__file__).parents[2]), str(tmp_path / "s")
    client = CLIENT.format(python=sys.executable, root=root, path=path)
    (programs / "hip").write_text(client)
    (programs / "hip").chmod(0o755)
    variables = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HIP_MODEL": str(model),
        "HIP_MAX_NEW_TOKENS": "4",
    }
    with serving(tmp_path / "s", kitchen, variables):
        assert len(lines()) > 15
        for line in lines():
            done = subprocess.run(
                ["bash", "-o", "pipefail", "-c", line],
                cwd=kitchen,
                env=variables,
                capture_output=True,
                timeout=60,
            )
            assert done.returncode == 0, f"{line}\n{done.stderr.decode()}"
    assert len((kitchen / "results.jsonl").read_text().splitlines()) == 2
    assert (kitchen / "answer.txt").exists() and (kitchen / "summary.json").exists()
