"""`hip` on several processes: what is refused at once, and runs as a user starts them."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hipcli.config import options
from hipcli.config.settings import Settings
from hipcli.runs import checks
from hipcli.runs.ranks import Ranks
from tests.engine.models import toy_models
from tests.hipcli.fakes import run_hip

ASK = ("-m", "toy", "--device", "cpu", "--no-cache", "--answer", "attend", "-n", "6")
SMALL = ("--budget-tokens", "128", "--window-tokens", "128", "--sink-tokens", "64")
NAMESPACES = ("hipa", "hipb")


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = (f"Line {n}: the owl {n} sat on a branch of tree {n * 7 % 13}." for n in range(120))
    (tmp_path / "book.txt").write_text("\n".join(rows))
    return tmp_path


@pytest.fixture
def told(monkeypatch):
    def tell(**values: str) -> None:
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return tell


def test_a_machine_without_a_gpu_says_so_and_what_to_do(folder, monkeypatch):
    monkeypatch.setattr(checks, "_why_no_gpu", lambda: "this machine has no GPU")
    outcome = run_hip("ask", "book.txt", "Who?", "--gpus", "2")
    assert outcome.code == 2
    assert "2 GPUs are wanted: this machine has no GPU" in outcome.err
    assert "--device cpu" in outcome.err


@pytest.mark.parametrize(
    "words, said",
    [
        (("--method", "quest"), "one device only"),
        (("--kv-dtype", "fp8_e4m3"), "--kv-dtype"),
        (("--no-cache", "--keep", "0.5"), "--keep"),
        (("--gpus", "0"), "--gpus"),
        (("--placement", "anywhere"), "placement"),
    ],
)
def test_what_several_cannot_do(folder, words, said):
    outcome = run_hip("ask", "book.txt", "Who?", "--gpus", "2", "--device", "cpu", *words)
    assert outcome.code == 2
    assert said in outcome.err


def test_the_environment_of_torchrun(folder, told):
    settings = Settings(
        {"gpus": 1, "placement": "contiguous", "rank_timeout": 9}, {"gpus": "default"}
    )
    assert Ranks.of(settings) is None
    told(RANK="3", WORLD_SIZE="4", MASTER_ADDR="10.0.0.9", MASTER_PORT="29500", LOCAL_RANK="1")
    ranks = Ranks.of(settings)
    address = ranks.address()
    assert (address.host, address.port, address.rank, address.size) == ("10.0.0.9", 29500, 3, 4)
    assert (address.local_rank, address.stall_s, address.agent) == (1, 9, False)
    told(TORCHELASTIC_USE_AGENT_STORE="True")
    assert Ranks.of(settings).address().agent
    told(WORLD_SIZE="1")
    assert Ranks.of(settings) is None


def test_torchrun_and_gpus_that_contradict(folder, told):
    told(RANK="1", WORLD_SIZE="4", MASTER_ADDR="10.0.0.9", MASTER_PORT="29500")
    outcome = run_hip("ask", "book.txt", "Who?", "--gpus", "2", "--device", "cpu")
    assert outcome.code == 2 and "4 processes" in outcome.err


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"WORLD_SIZE": "0"}, "RANK is 0, and WORLD_SIZE 0"),
        ({"RANK": "2"}, "RANK is 2, and WORLD_SIZE 2"),
        ({"RANK": "-1"}, "RANK is '-1'"),
        ({"LOCAL_RANK": "x"}, "LOCAL_RANK is 'x'"),
        ({"MASTER_PORT": "99999"}, "MASTER_PORT is 99999"),
    ],
)
def test_numbers_of_ranks_that_cannot_be(folder, told, changed, said):
    made = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    told(**made | changed)
    outcome = run_hip("ask", "book.txt", "Who?", "--device", "cpu", "--no-cache")
    assert outcome.code == 2 and said in outcome.err and "unset RANK" in outcome.err


def test_some_variables_of_another_tool_are_no_ranks(folder, told):
    told(RANK="1", WORLD_SIZE="2")
    outcome = run_hip("ask", "book.txt", "Who?", "--device", "cpu", "--no-cache")
    assert outcome.code == 0, outcome.err


def test_options_are_known():
    assert {option.name for option in options.RANKS} == {"gpus", "placement", "rank_timeout"}


def hip(*words: str, prefix: tuple[str, ...] = (), **environment: str) -> subprocess.Popen:
    """hip as a process of its own, asked about the book."""
    program = [*prefix, sys.executable, "-m", *words]
    pipe = subprocess.PIPE
    env = {**os.environ, **environment, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(program, stdout=pipe, stderr=pipe, text=True, env=env)


def ended(process: subprocess.Popen) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err


def asked(folder: Path) -> tuple[str, ...]:
    if not (folder / "toy").exists():
        toy_models.llama(folder / "toy")
    return ("hipcli", "ask", "book.txt", "Where is owl 77?", *ASK, *SMALL)


@pytest.mark.slow
def test_gpus_on_processors_and_torchrun_over_two_groups(folder):
    """One host by --gpus, and two torchruns that meet on loopback as two hosts would."""
    words = asked(folder)
    code, alone, err = ended(hip(*words))
    assert code == 0, err
    code, out, err = ended(hip(*words, "--gpus", "3"))
    assert (code, out) == (0, alone), err
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    run = ("torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1")
    meet = ("--master-addr", "127.0.0.1", "--master-port", str(port))
    hosts = [hip(*run, *meet, "--node-rank", str(n), "-m", *words) for n in (0, 1)]
    results = [ended(host) for host in hosts]
    assert [code for code, _, _ in results] == [0, 0], results
    assert "".join(out for _, out, _ in results) == alone


@pytest.mark.slow
def test_two_network_namespaces(folder):
    """Two hosts as far as the network is concerned; needs root and `ip`."""
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("network namespaces need root and the command ip")
    words = asked(folder)
    code, alone, err = ended(hip(*words))
    assert code == 0, err
    made = namespaces()
    if made:
        pytest.skip(f"no network namespaces here: {made}")
    try:
        told = {"WORLD_SIZE": "2", "MASTER_ADDR": "10.98.76.1", "MASTER_PORT": "29511"}
        hosts = []
        for rank, name in enumerate(NAMESPACES):
            inside = ("ip", "netns", "exec", name)
            own = {"RANK": str(rank), "GLOO_SOCKET_IFNAME": f"{name}0"}
            hosts.append(hip(*words, prefix=inside, **told, **own))
        results = [ended(host) for host in hosts]
    finally:
        for name in NAMESPACES:
            subprocess.run(("ip", "netns", "del", name), check=False)
    assert [code for code, _, _ in results] == [0, 0], results
    assert (results[0][1], results[1][1]) == (alone, "")


def namespaces() -> str:
    """Two namespaces joined by a cable; what went wrong, if anything did."""
    first, second = NAMESPACES
    steps = [f"netns add {first}", f"netns add {second}"]
    steps.append(f"link add {first}0 netns {first} type veth peer name {second}0 netns {second}")
    for number, name in enumerate(NAMESPACES, 1):
        steps += [
            f"-n {name} addr add 10.98.76.{number}/24 dev {name}0",
            f"-n {name} link set {name}0 up",
            f"-n {name} link set lo up",
        ]
    for step in steps:
        done = subprocess.run(("ip", *step.split()), capture_output=True, text=True, check=False)
        if done.returncode:
            for name in NAMESPACES:
                subprocess.run(("ip", "netns", "del", name), capture_output=True, check=False)
            return done.stderr.strip()
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_user_is_told_which_rank_is_gone(folder, number):
    """Exit code 1, one line that names the rank, and the next run goes on from the session."""
    words = asked(folder)
    words = tuple(word for word in words if word != "--no-cache")
    (folder / "book.txt").write_text((folder / "book.txt").read_text() * 60)
    process = hip(*words, "--gpus", "2", "--rank-timeout", "4", "--jsonl")
    seen: list[str] = []
    for line in process.stdout:
        seen.append(line)
        event = json.loads(line)
        if event.get("phase") == "prefill" and event.get("done_tokens"):
            break
    children = subprocess.run(
        ("pgrep", "-P", str(process.pid)), capture_output=True, text=True, check=True
    )
    began = time.monotonic()
    os.kill(int(children.stdout.split()[0]), number)
    code, out, err = ended(process)
    assert code == 1 and "rank 1" in out + err, err
    assert time.monotonic() - began < 60
    code, out, err = ended(hip(*words, "--json"))
    assert code == 0 and json.loads(out)["usage"]["cached_tokens"] > 0, err
