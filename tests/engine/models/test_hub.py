"""Hub models, against a hub on this machine that speaks the client's protocol."""

import functools
import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading

import pytest

from tests.engine.models import toy_models


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return toy_models.llama(tmp_path_factory.mktemp("llama"))


class HubHandler(http.server.BaseHTTPRequestHandler):
    """The three requests a snapshot download makes: model info, HEAD and GET of a file."""

    commit = "0123456789abcdef0123456789abcdef01234567"

    def __init__(self, files, asked, *args):
        self.files, self.asked = files, asked
        super().__init__(*args)

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body):
        path = self.path.partition("?")[0]
        with self.asked.open("a") as log:
            log.write(f"{path}\n")
        name = path.removeprefix(f"/org/toy/resolve/{self.commit}/")
        headers = {"X-Repo-Commit": self.commit}
        if path.startswith("/api/models/org/toy"):
            content = json.dumps(
                {
                    "id": "org/toy",
                    "sha": self.commit,
                    "siblings": [{"rfilename": name} for name in self.files],
                }
            ).encode()
            if "/tree/" in path:
                entries = [
                    {
                        "type": "file",
                        "path": name,
                        "size": len(data),
                        "oid": hashlib.sha1(data).hexdigest(),
                    }
                    for name, data in self.files.items()
                ]
                content = json.dumps(entries).encode()
            headers["Content-Type"] = "application/json"
        elif name in self.files:
            content = self.files[name]
            headers["ETag"] = f'"{hashlib.sha1(content).hexdigest()}"'
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)


@pytest.fixture
def endpoint(source, tmp_path):
    files = {file.name: file.read_bytes() for file in source.iterdir()}
    files["pytorch_model.bin"] = b"never wanted"
    files["original/model.safetensors"] = b"never wanted"
    handler = functools.partial(HubHandler, files, tmp_path / "asked")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def run(endpoint, tmp_path, name):
    """Pull in a fresh process, since the client reads its settings when imported."""
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from hipcli.engine.errors import ModelError\n"
        "from hipcli.engine.models import installed, pull, resolve, remove\n"
        f"models_dir = Path({str(tmp_path / 'models')!r})\n"
        "steps = []\n"
        "try:\n"
        f"    folder = pull({name!r}, models_dir=models_dir,\n"
        "                  progress=lambda *step: steps.append(step))\n"
        "except ModelError as error:\n"
        "    sys.exit(f'{error.message} {error.hint}')\n"
        f"assert resolve({name!r}, models_dir=models_dir) == folder\n"
        "assert [m.revision for m in installed(models_dir)] == [folder.revision]\n"
        "assert steps[0] == ('download', 0, 0) and steps[-1][1] == steps[-1][2], steps\n"
        "print(folder.revision, *sorted(p.name for p in folder.path.iterdir()))\n"
        f"remove({name!r}, models_dir=models_dir)\n"
        "assert installed(models_dir) == []\n"
    )
    settings = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "home")}
    settings |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DOWNLOAD_TIMEOUT": "5"}
    return subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **settings},
    )


def test_download(endpoint, source, tmp_path):
    done = run(endpoint, tmp_path, "org/toy")
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.split() == [
        HubHandler.commit,
        *sorted(file.name for file in source.iterdir()),
    ]
    asked = (tmp_path / "asked").read_text()
    assert "pytorch_model.bin" not in asked and "original" not in asked


def test_no_such_model(endpoint, tmp_path):
    done = run(endpoint, tmp_path, "org/none")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "There is no model org/none on the hub." in done.stderr


def test_no_network(tmp_path):
    done = run("http://127.0.0.1:9", tmp_path, "org/toy")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "Cannot download org/toy" in done.stderr
