"""Secrets and sizes: what is said before a model sees anything; values are never shown."""

from pathlib import Path

import pytest

from hipcli.documents import ReadOptions, read_sources
from hipcli.documents.secrets import find_secrets
from hipcli.engine.errors import InputError
from tests.hipcli.documents.test_folders import put, read

# Put together here, so that no scanner of repositories takes them for real ones.
AWS = "AKIA" + "J3KQ7ZT5WPXN2L4M"
GITHUB = "ghp_" + "a8Kd02mZq7" * 3 + "Bv61xW"
KEY = "-----BEGIN RSA " + "PRIVATE KEY-----\n" + "MIIEpAIBAAKCAQEA7bq9" * 3 + "\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"x\nkey = '{AWS}'\n", [("an AWS access key", 2)]),
        (f"a\n\n{GITHUB} {AWS}", [("a GitHub token", 3), ("an AWS access key", 3)]),
        (f'K = """{KEY}"""', [("a private key", 1)]),
        (f"{AWS}\n" * 9, [("an AWS access key", line) for line in (1, 2, 3)]),
        ("AKIA" + "IOSFODNN7EXAMPLE", []),
        ("-----BEGIN PRIVATE KEY-----", []),
        (f"prefix{AWS}", []),
        ("sk-learn is a library, xoxb- a prefix", []),
        ("", []),
    ],
)
def test_what_looks_like_a_secret(text: str, found: list[tuple[str, int]]) -> None:
    assert find_secrets(text) == found


def test_secrets_are_told_by_name_and_place_never_by_value(tmp_path: Path) -> None:
    put(tmp_path, {".env": f"K={AWS}", "a.py": f"\nk = '{AWS}'\n", "b.txt": "fine\n"})
    corpus = read(tmp_path)
    assert [warning.code for warning in corpus.warnings] == ["secrets_skipped", "secrets_inside"]
    skipped, inside = (warning.message for warning in corpus.warnings)
    assert ".env" in skipped and "name a file itself" in skipped
    assert "a.py, line 2: an AWS access key" in inside and "--exclude" in inside
    assert AWS not in skipped + inside
    # Warnings are no reason to stop.
    assert len(read(tmp_path, strict=True).documents) == 2


def test_folders_beyond_all_measure_are_refused_with_totals(tmp_path: Path) -> None:
    put(tmp_path, {f"{i}.txt": "four" for i in range(5)} | {"x.min.js": "left out anyway"})
    assert len(read(tmp_path, max_files=5, max_total_bytes=20).documents) == 5
    for limits in ({"max_files": 4}, {"max_total_bytes": 19}):
        with pytest.raises(InputError, match="5 files with 20 bytes") as caught:
            read(tmp_path, **limits)
        assert "--max-files" in caught.value.hint
    # What is named itself is wanted.
    named = [str(tmp_path / f"{i}.txt") for i in range(5)]
    assert len(read_sources(named, ReadOptions(max_files=1)).documents) == 5
