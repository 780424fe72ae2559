"""`hip` with a real engine, started in no time: a server that has torch loaded, and forks.

    python -m tests.hipcli.forked_hip SOCKET

A request is one line of JSON, `words` and perhaps `pause`, with three descriptors for the standard
streams. The reply is lines: `pid N`, `paused` when the work has come to `pause` (a name of
`PAUSES`; it then waits there for a signal), and `code N` at the end.
"""

import fcntl
import importlib
import json
import os
import socket
import subprocess
import sys
import termios
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

# Where a run can be made to wait: module, attribute, and at which call of it.
PAUSES = {
    "read": ("hipcli.documents.sources", "_read_item", 1),
    "load": ("hipcli.engine.models.loading", "_built", 1),
    "prefill": ("hipcli.engine.forward.runner", "Runner.forward", 3),
    "save": ("hipcli.engine.sessions.session", "Session.finish", 1),
    "vote": ("hipcli.engine.answering.vote", "Ballot.evidence", 1),
    "answer": ("hipcli.engine.engine", "Token", 3),
}
_ENOUGH_S = 30.0


class Run:
    """A run that was started: lines of its reply, and its end."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer
        self._lines = peer.makefile("r")
        self.pid = int(self._wait_for("pid"))

    def _wait_for(self, word: str) -> str:
        for line in self._lines:
            found, _, value = line.strip().partition(" ")
            if found == word:
                return value
        raise AssertionError(f"the run ended before it said {word!r}")

    def paused(self) -> None:
        """Waits until it has come to its pause."""
        self._wait_for("paused")

    def code(self) -> int:
        """Waits for the end; the exit code."""
        code = int(self._wait_for("code"))
        self._lines.close()
        self._peer.close()
        return code


def start(path: Path, words: list[str], streams: list[int], pause: str = "") -> Run:
    """Starts `hip` with `words` over the server that listens at `path`."""
    peer = socket.socket(socket.AF_UNIX)
    peer.connect(os.path.relpath(path))
    request = json.dumps({"words": words, "pause": pause}) + "\n"
    socket.send_fds(peer, [request.encode()], streams)
    return Run(peer)


@contextmanager
def serving(path: Path, folder: Path, variables: Mapping[str, str]) -> Iterator[None]:
    """Within, a server listens at `path`; its runs work in `folder`."""
    program = [sys.executable, "-m", "tests.hipcli.forked_hip", os.path.relpath(path, folder)]
    root = {"PYTHONPATH": str(Path(__file__).parents[2])}
    server = subprocess.Popen(
        program, cwd=folder, env={**variables, **root}, stdout=subprocess.PIPE
    )
    assert server.stdout is not None
    try:
        assert server.stdout.readline() == b"ready\n"
        yield
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def _pausing(original: Callable[..., Any], number: int, tell: Callable[[str], None]) -> Any:
    """`original`, whose call `number` waits for a signal first."""
    calls = 0

    def wrapped(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            tell("paused")
            time.sleep(_ENOUGH_S)
        return original(*arguments, **named)

    return wrapped


def _pause_at(name: str, tell: Callable[[str], None]) -> None:
    module, attribute, number = PAUSES[name]
    *owner, last = attribute.split(".")
    target: Any = importlib.import_module(module)
    for part in owner:
        target = getattr(target, part)
    setattr(target, last, _pausing(getattr(target, last), number, tell))


def _tell(peer: socket.socket, line: str) -> None:
    peer.sendall(f"{line}\n".encode())


def _run(request: dict[str, Any], streams: list[int], tell: Callable[[str], None]) -> NoReturn:
    """In the child: becomes `hip`."""
    os.setsid()
    if os.isatty(streams[0]):
        fcntl.ioctl(streams[0], termios.TIOCSCTTY, 0)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
    sys.argv = ["hip", *request["words"]]
    from hipcli.__main__ import main

    code = 1
    try:
        tell(f"pid {os.getpid()}")
        if request.get("pause"):
            _pause_at(request["pause"], tell)
        main()
    except SystemExit as error:
        code = int(error.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        tell(f"code {code}")
        os._exit(code)


def serve(path: str) -> None:
    """Answers requests until it is killed."""
    import torch
    import transformers  # noqa: F401  the children need it

    # A pool of threads does not survive a fork.
    torch.set_num_threads(1)
    for name in (
        "engine",
        "loaded",
        "checked",
        "answering.answerer",
        "reading.context",
        "reading.preflight",
    ):
        importlib.import_module(f"hipcli.engine.{name}")
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()
    print("ready", flush=True)
    while True:
        peer, _ = server.accept()
        data, streams, _, _ = socket.recv_fds(peer, 1 << 16, 3)
        if not os.fork():
            server.close()
            _run(json.loads(data), streams, partial(_tell, peer))
        for stream in streams:
            os.close(stream)
        peer.close()


if __name__ == "__main__":
    serve(sys.argv[1])
