"""`hip models calibrate` on a tiny model, and where its result shows."""

import json
from pathlib import Path
from typing import Any

import pytest

from hipcli.engine.calibration import texts
from tests.engine.evaluation.tiny import model_folder
from tests.hipcli.fakes import FakeEngine, run_hip

TEXTS = ("--lengths", "1k", "--samples", "1", "--device", "cpu")
EVAL = ("--lengths", "1k", "--depths", "0.5", "--method", "hip,bm25", "--answer", "share")
EVAL += ("--device", "cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("calibrate") / "tiny")


@pytest.fixture(autouse=True)
def few_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "ALIKE", 4)
    monkeypatch.setattr(texts, "UNSHARED", texts.UNSHARED[:4])


def rows(folder: Path, *words: str) -> list[dict]:
    outcome = run_hip("eval", "-m", str(folder), *EVAL, "--json", *words)
    assert outcome.code == 0, outcome.err
    return outcome.json["cells"]


def test_from_nothing_to_a_calibration_and_back(folder: Path, tmp_path: Path) -> None:
    model, out = str(folder), ("--out", str(tmp_path / "results.jsonl"))
    assert run_hip("models", "show", model, "--json").json["model"]["calibrated"] is False
    assert [row["heads"] for row in rows(folder, *out)] == ["", ""]

    outcome = run_hip("models", "calibrate", model, *TEXTS)
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith(f"{folder / 'heads.json'}: of 6 questions kept out")
    shown = run_hip("models", "show", model, "--json").json["model"]
    assert shown["calibrated"] and len(shown["heads"]) == 16
    assert f"heads: {shown['heads']}" in run_hip("models", "show", model).out

    # Only what votes is asked again, and results of both kinds stand apart.
    assert [row["heads"] for row in rows(folder, *out)] == ["", shown["heads"]]
    found = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [(row["method"], row["heads"]) for row in found] == [
        ("hip", ""),
        ("bm25", ""),
        ("hip", shown["heads"]),
    ]
    assert [row["heads"] for row in rows(folder, *out, "--no-calibrated")] == ["", ""]

    (folder / "heads.json").write_text("{}")
    outcome = run_hip("eval", "-m", model, *EVAL)
    assert outcome.code == 0 and "the calibration is not used" in outcome.err
    assert "the calibration is not used" in run_hip("models", "show", model).err

    removed = run_hip("models", "calibrate", model, "--remove", "--json")
    assert removed.json["removed"] is True and not (folder / "heads.json").exists()
    assert run_hip("models", "calibrate", model, "--remove", "--json").json["removed"] is False


def test_texts_that_do_not_fit_are_refused(folder: Path) -> None:
    outcome = run_hip("models", "calibrate", str(folder), "--lengths", "256", "--device", "cpu")
    assert outcome.code == 4 and "does not fit" in outcome.err
    assert run_hip("models", "calibrate", str(folder), "--lengths", "x").code == 2


class Calibrated(FakeEngine):
    """A stand-in whose heads were calibrated."""

    @property
    def description(self) -> dict[str, Any]:
        # Dataclasses and a bare super() do not mix on every Python.
        plain = FakeEngine.description.fget(self)
        return plain | {"model": plain["model"] | {"heads": "0123456789abcdef"}}


def test_answers_tell_that_votes_are_calibrated(tmp_path: Path) -> None:
    document = tmp_path / "a.txt"
    document.write_text("The house is green.\n")
    words = ("ask", str(document), "Which colour?", "--json", "-v")
    answered = run_hip(*words, engine=Calibrated())
    assert answered.json["model"]["heads"] == "0123456789abcdef"
    assert "heads vote as they were calibrated (0123456789abcdef)" in answered.err
    engine = FakeEngine()
    assert "were calibrated" not in run_hip(*words, "--no-calibrated", engine=engine).err
    assert engine.configs[-1].calibrated is False
