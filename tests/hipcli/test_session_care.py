"""`hip sessions verify`, `fork`, `prune`, and the others on a cache with real files."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from hipcli.engine.sessions import SessionStore
from hipcli.engine.sessions.disk import Disk
from hipcli.engine.sessions.manifest import MANIFEST, read_sealed, write_sealed
from hipcli.terminal.completion import sessions
from tests.hipcli.fakes import run_hip
from tests.hipcli.saved import flip, save


@pytest.fixture
def cache() -> Path:
    return Path(os.environ["HIP_CACHE_DIR"])


def folder(cache: Path, label: str) -> Path:
    (found,) = [r.path for r in SessionStore(cache).list() if r.inputs[0]["name"] == label]
    return found


def test_verify_says_what_is_sound(cache: Path) -> None:
    first, second = save(cache, "a.txt", "letters"), save(cache, "b.txt", partial=True)
    outcome = run_hip("sessions", "verify")
    assert outcome.code == 0
    assert sorted(outcome.out.splitlines()) == sorted(
        [f"{first.key[:12]}  ok", f"{second.key[:12]}  ok"]
    )
    rows = run_hip("sessions", "list", "--json").json["sessions"]
    assert sorted(row["tokens_done"] for row in rows) == [64, 192]
    (row,) = run_hip("sessions", "verify", "letters", "--json").json["sessions"]
    assert row == {
        "id": first.key[:12],
        "name": "letters",
        "status": "ok",
        "reason": "",
        "quarantined": False,
    }
    assert run_hip("sessions", "verify", "nosuch").code == 1


@pytest.mark.parametrize(
    ("name", "offset"),
    [
        ("kv/000.pages", 5),
        ("kv/001.pages", 700),
        ("index/001.bounds", 90),
        ("checksums.u32", 0),
        ("tokens.i32", 17),
        (MANIFEST, 30),
    ],
)
def test_verify_puts_a_damaged_session_aside(cache: Path, name: str, offset: int) -> None:
    save(cache, "good.txt")
    damaged = save(cache, "bad.txt")
    flip(folder(cache, "bad.txt") / name, offset)
    outcome = run_hip("sessions", "verify", "--json")
    assert outcome.code == 1
    rows = {row["id"]: row for row in outcome.json["sessions"]}
    assert rows[damaged.key[:12]]["status"] == "damaged"
    assert rows[damaged.key[:12]]["quarantined"]
    assert [row["status"] for row in rows.values()].count("ok") == 1
    assert [row.inputs[0]["name"] for row in SessionStore(cache).list()] == ["good.txt"]
    assert run_hip("sessions", "verify").code == 0
    assert "Traceback" not in outcome.err


def test_a_newer_session_is_refused_and_kept(cache: Path) -> None:
    key = save(cache, "a.txt").key
    path = folder(cache, "a.txt")
    write_sealed(path / MANIFEST, {**read_sealed(path / MANIFEST), "format_version": 99}, Disk())
    (row,) = run_hip("sessions", "verify", "--json").json["sessions"]
    assert row["status"] == "newer" and path.exists()
    (listed,) = run_hip("sessions", "list", "--json").json["sessions"]
    assert listed["state"] == "newer" and listed["bytes"] > 0
    run_hip("sessions", "prune", "--max-size", "1B")
    assert path.exists()
    outcome = run_hip("ask", "--resume", key[:8], "Who?")
    assert outcome.code == 1 and "newer than" in outcome.err
    assert run_hip("sessions", "rm", key[:8]).code == 0
    assert not path.exists()


def test_fork_prints_the_id_of_the_branch(cache: Path) -> None:
    save(cache, "a.txt", "letters")
    outcome = run_hip("sessions", "fork", "letters", "--name", "second")
    assert outcome.code == 0
    branch = SessionStore(cache).find(outcome.out.strip())
    assert branch.name == "second"
    told = run_hip("sessions", "fork", "letters", "--name", "second", "--json")
    assert told.json["session"]["name"] == "second" and branch.id in told.err
    assert sorted(r.name for r in SessionStore(cache).list()) == ["", "letters", "second"]
    inode = (branch.path / "kv/000.pages").stat().st_ino
    assert (folder_of(cache, "letters") / "kv/000.pages").stat().st_ino == inode
    assert run_hip("sessions", "verify").code == 0


def folder_of(cache: Path, name: str) -> Path:
    return SessionStore(cache).find(name).path


def test_a_partial_session_is_not_forked(cache: Path) -> None:
    save(cache, "a.txt", "half", partial=True)
    outcome = run_hip("sessions", "fork", "half")
    assert outcome.code == 1 and "not read to its end" in outcome.err


def test_prune_removes_the_longest_unused(cache: Path) -> None:
    for label in ("a.txt", "b.txt", "c.txt"):
        save(cache, label)
    store = SessionStore(cache)
    size = store.list()[0].num_bytes
    limit = f"{int(2.5 * size)}B"
    dry = run_hip("sessions", "prune", "--max-size", limit, "--dry-run", "--json").json
    assert [row["path"] for row in dry["removed"]] == [str(folder(cache, "a.txt"))]
    assert len(store.list()) == 3
    run_hip("sessions", "prune", "--max-size", limit)
    assert [record.inputs[0]["name"] for record in store.list()] == ["c.txt", "b.txt"]
    flip(folder(cache, "b.txt") / MANIFEST, 9)
    shutil.copytree(folder(cache, "c.txt"), store.root / "quarantine" / "old")
    assert "removed" in run_hip("sessions", "prune").err
    assert [record.inputs[0]["name"] for record in store.list(unusable=True)] == ["c.txt"]
    assert list(store.quarantined()) == []
    assert "nothing to remove" in run_hip("sessions", "prune").err


def test_prune_keeps_a_part_of_the_pages(cache: Path) -> None:
    save(cache, "a.txt", "letters", sink_tokens=64)
    before = folder_of(cache, "letters")
    dry = run_hip("sessions", "prune", "letters", "--keep", "0.5", "--dry-run")
    assert dry.code == 0 and folder_of(cache, "letters") == before
    outcome = run_hip("sessions", "prune", "letters", "--keep", "0.5", "--json")
    assert outcome.code == 0, outcome.err
    (row,) = outcome.json["pruned"]
    (record,) = SessionStore(cache).list()
    # Sinks, and the page that is worth more of the two behind them.
    assert row["session"]["id"] == record.id and record.name == "letters"
    assert round(record.kept_ratio, 3) == 0.667 == round(row["session"]["kept_ratio"], 3)
    page_bytes = (before.parent / record.path.name / "kv" / "000.pages").stat().st_size
    assert page_bytes == 2 * 256
    assert run_hip("sessions", "verify").code == 0
    assert (
        "nothing to leave out at --keep 0.5"
        in run_hip("sessions", "prune", "letters", "--keep", "0.5").err
    )
    for words in (["letters"], ["--keep", "0.5"], ["letters", "--keep", "1"]):
        assert run_hip("sessions", "prune", *words).code == 2
    assert run_hip("sessions", "prune", "letters", "--keep", "much").code == 2


def test_what_was_put_aside_is_listed_and_shown(cache: Path) -> None:
    save(cache, "good.txt")
    bad = save(cache, "bad.txt", "bad")
    flip(folder(cache, "bad.txt") / "kv/000.pages", 5)
    run_hip("sessions", "verify")
    outcome = run_hip("sessions", "list")
    assert "quarantined" in outcome.out and "hip sessions prune" in outcome.err
    document = run_hip("sessions", "list", "--json").json
    (aside,) = document["quarantined"]
    assert aside["id"] == bad.key[:12] and aside["state"] == "quarantined" and aside["bytes"]
    assert [row["id"] for row in document["sessions"]] != [aside["id"]]
    shown = run_hip("sessions", "show", bad.key[:6], "--json").json["session"]
    assert shown == aside == run_hip("sessions", "show", "bad", "--json").json["session"]
    assert run_hip("sessions", "rm", "bad").code == 0
    assert run_hip("sessions", "list", "--json").json["quarantined"] == []


@pytest.mark.parametrize(
    "name",
    ["../../evil", "a/b", "a\\b", "-rf", ".hidden", "tab\there", "\x1b[31mred", " x ", "n" * 101],
)
def test_names_that_are_none_are_refused(cache: Path, name: str) -> None:
    save(cache, "a.txt", "letters")
    outcome = run_hip("ask", "a.txt", "Who?", f"--name={name}")
    assert outcome.code == 2 and "session name" in outcome.err
    outcome = run_hip("sessions", "fork", "letters", f"--name={name}")
    assert outcome.code == 1 and "session name" in outcome.err
    assert len(SessionStore(cache).list()) == 1


def test_prune_knows_that_forks_share_pages(cache: Path) -> None:
    save(cache, "a.txt", "letters")
    run_hip("sessions", "fork", "letters", "--name", "second")
    save(cache, "b.txt")
    run_hip("sessions", "prune", "--max-size", "1B")
    assert SessionStore(cache).list() == []


def test_list_shows_what_nobody_can_read_and_the_total(cache: Path) -> None:
    save(cache, "a.txt")
    damaged = save(cache, "b.txt")
    flip(folder(cache, "b.txt") / MANIFEST, 9)
    document = run_hip("sessions", "list", "--json").json
    assert [row["state"] for row in document["sessions"]].count("damaged") == 1
    assert document["total_bytes"] == SessionStore(cache).total_bytes()
    assert run_hip("sessions", "show", damaged.key[:6], "--json").json["session"]["bytes"] > 0
    assert run_hip("sessions", "rm", damaged.key[:6]).code == 0


def test_the_shell_completes_ids_and_names(cache: Path) -> None:
    key = save(cache, "a.txt", "letters").key
    context = SimpleNamespace(params={"cache_dir": cache})
    assert [word for word, _ in sessions(context, "le")] == ["letters"]  # type: ignore[arg-type]
    assert [word for word, _ in sessions(context, key[:3])] == [key[:12]]  # type: ignore[arg-type]
    assert [word for word, _ in sessions(context, "nosuch")] == []  # type: ignore[arg-type]


def test_a_busy_session_is_neither_removed_nor_verified(cache: Path) -> None:
    key = save(cache, "a.txt", "half", partial=True).key
    with SessionStore(cache).lock(key):
        assert f"process {os.getpid()}" in run_hip("sessions", "rm", "half").err
        (row,) = run_hip("sessions", "verify", "--json").json["sessions"]
        assert row["status"] == "busy"
    assert run_hip("sessions", "rm", "half").code == 0


@pytest.mark.parametrize("home", [None, "a file", "/proc/no/home"])
def test_without_a_home_there_are_no_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str | None
) -> None:
    for variable in ("HIP_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "a file").write_text("")
    if home is None:
        monkeypatch.delenv("HOME")
    else:
        monkeypatch.setenv("HOME", str(tmp_path / home))
    monkeypatch.chdir(tmp_path)
    listed = run_hip("sessions", "list", "--json")
    assert listed.code == 0 and isinstance(listed.json["sessions"], list)
    assert run_hip("ask", "--resume", "nosuch", "Who?").code == 1
    assert "Traceback" not in listed.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a file"]
