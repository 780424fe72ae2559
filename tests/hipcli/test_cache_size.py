"""`--cache-max-size`."""

from pathlib import Path

import pytest

from tests.hipcli.fakes import FakeEngine, run_hip


@pytest.mark.parametrize(("words", "max_bytes"), [((), 0), (("--cache-max-size", "2MiB"), 2 << 20)])
def test_the_limit_reaches_the_engine(
    words: tuple[str, ...], max_bytes: int, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("A letter from Ada.\n")
    engine = FakeEngine()
    run_hip("ask", str(tmp_path / "a.txt"), "Who?", *words, engine=engine)
    assert engine.requests[0].cache.max_bytes == max_bytes


def test_a_limit_that_is_no_size_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A letter from Ada.\n")
    outcome = run_hip("ask", str(tmp_path / "a.txt"), "Who?", "--cache-max-size", "much")
    assert outcome.code == 2 and "not a size" in outcome.err
