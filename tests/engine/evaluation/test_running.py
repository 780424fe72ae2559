"""Cells: asked once, graded, kept; what shares a reading answers as if it had been asked alone."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hipcli.engine.config import CacheConfig, GenerationConfig
from hipcli.engine.engine import Engine
from hipcli.engine.errors import UsageError
from hipcli.engine.evaluation.haystacks import files_kind
from hipcli.engine.evaluation.plan import Plan, key_of_row
from hipcli.engine.evaluation.results import append_rows, read_rows
from hipcli.engine.evaluation.running import Evaluation, Kept
from hipcli.engine.evaluation.summary import grids, lines
from hipcli.engine.events import Phase, Result
from hipcli.engine.request import AskRequest
from hipcli.engine.store.pages import KVLayout, KVStore
from hipcli.prompts.whole_text import TextPrompts
from tests.engine.evaluation.tiny import sharpen, tiny_engine

SMALL = {
    "sink_tokens": 64,
    "window_tokens": 128,
    "budget_tokens": 128,
    "prefill_budget_tokens": 128,
    "dense_tokens": 0,
    "candidate_tokens": 256,
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return tiny_engine(tmp_path_factory.mktemp("model"))


def plan(**changes: object) -> Plan:
    fields = {
        "tasks": ("passkey",),
        "haystacks": ("noise",),
        "lengths": (1500,),
        "depths": (0.5,),
        "methods": ("hip",),
        "answers": ("attend",),
    }
    return Plan(**{**fields, **changes})


def evaluation(engine: Engine, **changes: object) -> Evaluation:
    return Evaluation(engine, TextPrompts(engine.tokenizer), plan(**changes), SMALL)


def test_every_subject_answers_every_text(engine: Engine, tmp_path: Path) -> None:
    changes = {
        "tasks": ("passkey", "alike_8"),
        "methods": ("hip", "window", "dense", "bm25", "oracle"),
        "answers": ("attend", "reread"),
    }
    run = evaluation(engine, **changes)
    rows = [row for rows in run.rows(set()) for row in rows]
    # hip and window in two modes, three others; look-alikes in two wordings.
    assert len(rows) == 7 * (1 + 2)
    assert all(row["score"] is not None and len(key_of_row(row)) > 50 for row in rows)
    by_method = {row["method"]: row for row in rows if row["task"] == "passkey"}
    for name in ("bm25", "oracle"):
        assert by_method[name]["recall_1"] == by_method[name]["recall_24"] == 1.0
        assert by_method[name]["questions"][0]["mode"] == "dense"
        assert by_method[name]["read_tokens"] < 700
    assert by_method["dense"]["questions"][0]["mode"] == "dense"
    assert by_method["hip"]["read_tokens"] > 1400
    assert {row["wording"] for row in rows if row["task"] == "alike_8"} == {"", "reworded"}

    out = tmp_path / "results.jsonl"
    append_rows(out, rows)
    kept = run.kept(read_rows(out))
    assert len(kept.rows) == len(rows)
    assert list(run.rows(kept.keys)) == []
    assert not evaluation(engine, seed=1).kept(read_rows(out)).rows
    for other in ({"texts_version": 0}, {"looks": 3}):
        assert not run.kept([row | other for row in rows]).rows
    # Of an older file, which knew of no second looks, baselines alone are the same cells.
    older = [{name: value for name, value in row.items() if name != "looks"} for row in rows]
    assert {row["method"] for row in run.kept(older).rows} == {"bm25", "oracle"}

    table = lines(rows)
    assert len(table) == 7 * 3
    assert {line.asked for line in table} == {1, 4}
    (grid,) = [g for g in grids(rows) if g.title == "oracle reread: passkey in noise"]
    assert (grid.depths, grid.lengths) == ((0.5,), (1500,))


def test_one_missing_answer_is_asked_alone(engine: Engine) -> None:
    run = evaluation(engine, answers=("attend", "reread"))
    cells = list(run.rows(set()))
    assert len(cells) == 2
    (again,) = run.rows({key_of_row(cells[0][0])})
    assert again[0]["answer"] == "reread"
    assert again[0]["questions"][0]["answer"] == cells[1][0]["questions"][0]["answer"]


def test_asked_together_equals_asked_alone(engine: Engine) -> None:
    hip = engine.with_method("hip", SMALL)
    ids = np.random.default_rng(1).integers(5, 200, 700).astype(np.int32)

    def request(question: list[int], answer: str) -> AskRequest:
        return AskRequest(
            context_ids=ids,
            question_ids=question,
            prefix_tokens=3,
            answer=answer,
            generation=GenerationConfig(max_new_tokens=70),
            cache=CacheConfig(None),
        )

    requests = [
        request([9, 8, 7] * 30, "attend"),
        request([20, 21], "share"),
        request([20, 21, 22], "reread"),
        request([20, 21], "attend"),
    ]
    together = [event for event in hip.ask_each(requests) if isinstance(event, Result)]
    for asked, result in zip(requests, together, strict=True):
        (alone,) = [event for event in hip.ask(asked) if isinstance(event, Result)]
        assert alone.answer == result.answer
        assert alone.evidence == result.evidence
        assert alone.mode == result.mode == asked.answer
    assert together[0].cached_tokens == 0
    assert together[1].cached_tokens == len(ids) and together[1].prefilled_tokens == 2
    assert together[2].reread_tokens > 0 == together[1].reread_tokens
    other = request([1, 2], "attend")
    shorter = AskRequest(context_ids=ids[:-1], question_ids=[1], prefix_tokens=3)
    with pytest.raises(ValueError, match="same context"):
        list(hip.ask_each([other, shorter]))


def test_a_store_goes_back_to_its_tail() -> None:
    layout = KVLayout(num_layers=1, num_kv_heads=1, head_dim=4, dtype=torch.float32)
    store = KVStore(layout, 256)
    store.append(0, 0, torch.randn(100, 1, 4), torch.randn(100, 1, 4))
    store.length = 100
    before, tail = store.pages[0][:2].clone(), store.tail()
    store.append(0, 100, torch.randn(60, 1, 4), torch.randn(60, 1, 4))
    # As a change of scale would.
    store.pages[0][1].mul_(0.5)
    store.length = 160
    store.rewind(tail)
    assert store.length == 100
    assert torch.equal(store.pages[0][:2], before)


def test_what_does_not_fit_is_a_row(engine: Engine) -> None:
    run = evaluation(engine, methods=("dense", "bm25"), lengths=(5000,))
    (unfit,), (fit,) = run.rows(set())
    assert "4096 tokens" in unfit["error"] and fit["score"] is not None
    assert [line.error[:4] for line in lines([unfit, fit])][1] == ""
    run = evaluation(engine, tasks=("alike_64",), lengths=(700,))
    ((row,),) = run.rows(set())
    assert "64 needles" in row["error"]


def test_time_runs_out_between_cells(engine: Engine) -> None:
    run = evaluation(engine, depths=(0.1, 0.9))
    run.limit_s = 0.0
    assert list(run.rows(set())) == []
    assert run.out_of_time


def test_an_interruption_keeps_finished_cells(engine: Engine) -> None:
    run = evaluation(engine, methods=("hip", "bm25"))
    kept = []

    def strike(event: object) -> None:
        if kept and isinstance(event, Phase):
            raise KeyboardInterrupt

    run.on_event = strike
    with pytest.raises(KeyboardInterrupt):
        for rows in run.rows(set()):
            kept += rows
    assert [row["method"] for row in kept] == ["hip"]


def test_files_name_their_contents(engine: Engine) -> None:
    run = evaluation(engine, haystacks=("files",), methods=("bm25",))
    run.files = files_kind("def area(width):\n    return width\n" * 40)
    ((row,),) = run.rows(set())
    assert row["haystack_digest"] == run.files.summary
    run.files = files_kind("other text\n")
    assert not run.kept([row]).rows
    with pytest.raises(UsageError, match="--haystack-files"):
        list(evaluation(engine, haystacks=("files",)).rows(set()))


def test_half_written_results_are_passed_over(engine: Engine, tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    ((row,),) = evaluation(engine, methods=("bm25",)).rows(set())
    append_rows(out, [row])
    whole = out.read_bytes()
    out.write_bytes(whole + b"[1]\n" + whole[: len(whole) // 2])
    append_rows(out, [row])
    assert [json.loads(json.dumps(row)) for _ in range(2)] == read_rows(out)
    assert read_rows(tmp_path / "none.jsonl") == []
    # Twice the same is one; an answer may hold what Python takes for ends of lines.
    strange = row | {"questions": [{"answer": "a\u2028b\x85c"}]}
    append_rows(out, [strange])
    assert evaluation(engine, methods=("bm25",)).kept(read_rows(out)).rows == [strange]


def test_a_cell_of_which_a_wording_is_missing_is_asked_again(
    engine: Engine, tmp_path: Path
) -> None:
    out, run = tmp_path / "results.jsonl", evaluation(engine, tasks=("alike_8",), methods=("bm25",))
    (rows,) = run.rows(set())
    assert [row["wording"] for row in rows] == ["", "reworded"]
    append_rows(out, rows)
    whole = out.read_bytes()
    assert len(run.kept(read_rows(out)).rows) == 2
    out.write_bytes(whole[:-40])
    assert run.kept(read_rows(out)) == Kept([], set())


def test_results_of_other_weights_or_numbers_are_of_other_cells(
    engine: Engine, tmp_path: Path
) -> None:
    config = replace(engine.config, models_dir=tmp_path)
    path = tmp_path / "a" / "tiny"
    shutil.copytree(engine.folder.path, path)
    folder = replace(engine.folder, path=path)

    def known(**changes: str) -> bool:
        asked = Engine(replace(config, **changes), folder, engine.tokenizer)
        return bool(evaluation(asked, methods=("bm25",)).kept(rows).rows)

    asked = evaluation(Engine(config, folder, engine.tokenizer), methods=("bm25",))
    (rows,) = asked.rows(set())
    assert known() and not known(dtype="float32") and not known(weights="int8")
    sharpen(folder.path)
    assert not known()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("tasks", ("nosuch",), "unknown task 'nosuch'"),
        ("haystacks", ("hay",), "unknown haystack 'hay'"),
        ("methods", ("bm52",), "unknown method 'bm52'"),
        ("answers", ("guess",), "unknown answer mode 'guess'"),
        ("lengths", (100,), "100 tokens hold no task"),
        ("depths", (1.5,), "between 0 and 1"),
    ],
)
def test_a_plan_refuses(field: str, value: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plan(**{field: value})


def test_a_plan_asks_short_texts_first() -> None:
    texts = list(
        plan(
            tasks=("passkey", "json_many", "facts_1"),
            haystacks=("prose", "code"),
            lengths=(1000, 2000),
            depths=(0.1, 0.9),
            samples=2,
        ).texts()
    )
    assert [text.length for text in texts] == sorted(text.length for text in texts)
    own = [text for text in texts if text.task == "json_many"]
    assert {text.haystack for text in own} == {"own"}
    # Two lengths, two samples; a task of its own text once, the others once a haystack.
    assert len(texts) == 4 * (2 * 2 + 2 + 2)
    assert len(set(texts)) == len(texts)
