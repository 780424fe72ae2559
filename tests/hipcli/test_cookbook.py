"""Every line of `docs/cookbook.md` runs, with a tiny model and the real engine."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.models import toy_models

COOKBOOK = Path(__file__).parents[2] / "docs" / "cookbook.md"
BLOCK = re.compile(r"```sh\n(.*?)```", re.DOTALL)

# One process answers all lines in a row: torch is imported once and forked from there.
SERVER = """
import os, socket, sys, traceback
import torch, transformers
from hipcli.engine import engine, loaded, context, answering
torch.set_num_threads(1)
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen()
print("ready", flush=True)
while True:
    peer, _ = server.accept()
    data, streams, _, _ = socket.recv_fds(peer, 1 << 16, 3)
    if os.fork():
        for stream in streams:
            os.close(stream)
        peer.close()
        continue
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")
    sys.argv = ["hip", *data.decode().split("\\0")[1:]]
    from hipcli.__main__ import main
    code = 1
    try:
        main()
    except SystemExit as error:
        code = int(error.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        peer.sendall(bytes([code]))
        os._exit(0)
"""
CLIENT = """#!{python}
import socket, sys
peer = socket.socket(socket.AF_UNIX)
peer.connect({path!r})
socket.send_fds(peer, ["\\0".join(["hip", *sys.argv[1:]]).encode()], [0, 1, 2])
sys.exit(peer.recv(1)[0])
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
    path = os.path.relpath(tmp_path / "s", kitchen)
    (programs / "hip").write_text(CLIENT.format(python=sys.executable, path=path))
    (programs / "hip").chmod(0o755)
    variables = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HIP_MODEL": str(model),
        "HIP_MAX_NEW_TOKENS": "4",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, path], cwd=kitchen, env=variables, stdout=subprocess.PIPE
    )
    assert server.stdout is not None
    try:
        assert server.stdout.readline() == b"ready\n"
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
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
    assert len((kitchen / "results.jsonl").read_text().splitlines()) == 2
    assert (kitchen / "answer.txt").exists() and (kitchen / "summary.json").exists()
