"""`hip models calibrate` on a tiny model, and where its result shows."""

import json
from pathlib import Path

import pytest

from tests.engine.evaluation.tiny import model_folder
from tests.hipcli.fakes import run_hip

TEXTS = ("--lengths", "4k", "--samples", "1", "--device", "cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("calibrate") / "tiny")


def rows(folder: Path, *words: str) -> list[dict]:
    small = ("--lengths", "1k", "--depths", "0.5", "--method", "hip,bm25", "--answer", "share")
    outcome = run_hip("eval", "-m", str(folder), *small, "--device", "cpu", "--json", *words)
    assert outcome.code == 0, outcome.err
    return outcome.json["cells"]


def test_from_nothing_to_a_calibration_and_back(folder: Path, tmp_path: Path) -> None:
    model, out = str(folder), ("--out", str(tmp_path / "results.jsonl"))
    assert run_hip("models", "show", model, "--json").json["model"]["calibrated"] is False
    assert [row["heads"] for row in rows(folder, *out)] == ["", ""]

    outcome = run_hip("models", "calibrate", model, *TEXTS)
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith(f"{folder / 'heads.json'}: of 20 questions kept out")
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

    document = tmp_path / "a.txt"
    document.write_text("The house is green.\n" * 50)
    words = ("ask", str(document), "Which colour?", "-m", model, "--device", "cpu", "-n", "2")
    answered = run_hip(*words, "--json", "-v")
    assert answered.json["model"]["heads"] == shown["heads"]
    assert f"heads vote as they were calibrated ({shown['heads']})" in answered.err

    (folder / "heads.json").write_text("{}")
    answered = run_hip(*words, "--json")
    assert answered.json["model"]["heads"] is None
    assert "heads_ignored" in [row["code"] for row in answered.json["warnings"]]
    assert "the calibration is not used" in run_hip("models", "show", model).err

    removed = run_hip("models", "calibrate", model, "--remove", "--json")
    assert removed.json["removed"] is True and not (folder / "heads.json").exists()
    assert run_hip("models", "calibrate", model, "--remove", "--json").json["removed"] is False


def test_texts_that_do_not_fit_are_refused(folder: Path) -> None:
    outcome = run_hip("models", "calibrate", str(folder), "--lengths", "1k", "--device", "cpu")
    assert outcome.code == 4 and "does not fit" in outcome.err
    assert not (folder / "heads.json").exists()
    assert run_hip("models", "calibrate", str(folder), "--lengths", "x").code == 2
