"""How ranks start and wait: what others put in their way."""

import os
import signal
import sys
import threading
import time

import pytest

from hipcli.engine.distributed.control import Address, RankLostError, connect
from hipcli.engine.distributed.shard import STATUS_BYTES, _described, _raised
from hipcli.engine.distributed.starting import Crew
from hipcli.engine.errors import HipError
from tests.engine.distributed.processes import free_port


def test_a_rank_runs_no_module_of_the_folder_that_is_read(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("open('ran', 'w').close()\nraise SystemExit(7)\n")
    monkeypatch.chdir(tmp_path)
    # As where a package was installed for development: the folder is on no path.
    monkeypatch.delenv("PYTHONPATH", raising=False)
    crew = Crew(2)
    crew._start_other("{}", "{}")
    (process,) = crew._others
    process.wait(60)
    crew._said[0].seek(0)
    said = crew._said[0].read().decode()
    crew.close()
    assert not (tmp_path / "ran").exists(), said
    # It got as far as the address, which is none.
    assert process.returncode == 1 and "Address" in said


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_rank_that_waits_can_be_interrupted():
    address = Address("127.0.0.1", free_port(), 1, 2)
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    began = time.monotonic()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        connect(address, limit_s=30)
    assert time.monotonic() - began < 20


def test_a_host_that_nobody_knows_is_told():
    address = Address("nowhere.invalid", 29500, 1, 2, stall_s=0)
    with pytest.raises(RankLostError, match=r"nobody answers at nowhere\.invalid:29500"):
        connect(address, limit_s=3600)


def test_words_of_any_letters_fit_a_status():
    owls = "\N{OWL}" * 5000
    raw = _described(HipError(owls, owls))
    assert len(raw) <= STATUS_BYTES
    assert str(_raised(raw)).startswith("\N{OWL}")
