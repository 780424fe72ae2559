"""Texts have the length asked for, and needles stand where they were put."""

from pathlib import Path
from random import Random

import numpy as np
import pytest

from hipcli.documents import ReadOptions, read_sources
from hipcli.engine.errors import DoesNotFitError
from hipcli.engine.evaluation.composing import compose
from hipcli.engine.evaluation.haystacks import HAYSTACKS, files_kind
from hipcli.engine.evaluation.placing import Haystack, unit_ends
from hipcli.engine.evaluation.tasks import TASKS
from hipcli.prompts import assemble
from hipcli.prompts.whole_text import TextPrompts
from tests.engine.evaluation.tiny import toy_prompts

LENGTH = 6000


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> TextPrompts:
    return toy_prompts(tmp_path_factory.mktemp("tokenizer"))


def haystack(prompts: TextPrompts, kind: str = "prose") -> Haystack:
    made = HAYSTACKS[kind]
    return Haystack(made.units(Random("h")), prompts.tokenizer, made.wrap)


@pytest.mark.parametrize("name", TASKS)
def test_length_and_places(prompts: TextPrompts, name: str) -> None:
    draft = TASKS[name].make(Random("n"), 0.5)
    case = compose(draft, haystack(prompts), prompts, LENGTH)
    behind = max(
        len(prompts.question(probe.question)[0]) + probe.max_new_tokens for probe in draft.probes
    )
    assert LENGTH - 250 <= len(case.placed.ids) + behind <= LENGTH
    for needle, (start, end) in zip(draft.needles, case.needles, strict=True):
        assert needle.sentence in prompts.tokenizer.decode(case.placed.ids[start:end])
        assert case.text.count(needle.sentence) == 1
        # Tokens at the ends may reach beyond the sentence, not by much.
        assert len(prompts.tokenizer.decode(case.placed.ids[start:end])) < len(needle.sentence) + 8
        assert abs(start / len(case.placed.ids) - needle.depth) < 0.12


@pytest.mark.parametrize("kind", HAYSTACKS)
@pytest.mark.parametrize("depth", [0.0, 0.4, 1.0])
def test_depth(prompts: TextPrompts, kind: str, depth: float) -> None:
    draft = TASKS["passkey"].make(Random("n"), depth)
    case = compose(draft, haystack(prompts, kind), prompts, LENGTH)
    assert abs(case.needles[0][0] / len(case.placed.ids) - depth) < 0.1


def test_a_longer_text_begins_as_a_shorter_one(prompts: TextPrompts) -> None:
    hay = haystack(prompts)
    draft = TASKS["passkey"].make(Random("n"), 1.0)
    short, long = (compose(draft, hay, prompts, length).text for length in (2000, 4000))
    sentence = draft.needles[0].sentence
    assert long.startswith(short[: short.index(sentence)])


def test_the_prompt_is_the_product_s_own(prompts: TextPrompts, tmp_path: Path) -> None:
    text = "A first line.\nAnd caf\u00e9.\n"
    (tmp_path / "text.txt").write_text(text, "utf-8")
    corpus = read_sources([str(tmp_path / "text.txt")], ReadOptions())
    context = assemble(corpus, prompts.tokenizer, None)
    placed = prompts.context(text)
    named = prompts.tokenizer.decode(context.ids).replace(str(tmp_path) + "/", "")
    assert prompts.tokenizer.decode(placed.ids) == named
    start, end = placed.tokens_of(text.index("And"), text.index(" caf"))
    assert "And" in prompts.tokenizer.decode(placed.ids[start:end])


def test_what_does_not_fit_is_refused(prompts: TextPrompts) -> None:
    draft = TASKS["alike_64"].make(Random("n"), 0.5)
    with pytest.raises(DoesNotFitError, match="64 needles"):
        compose(draft, haystack(prompts), prompts, 1000)


def test_files_are_read_in_a_circle(prompts: TextPrompts) -> None:
    kind = files_kind("one\ntwo\nthree")
    units = kind.units(Random(1))
    lines = [next(units) for _ in range(7)]
    assert sorted(set(lines)) == ["one\n", "three\n", "two\n"]
    assert lines[:3] == lines[3:6]
    assert files_kind("one\ntwo\nthree").summary == kind.summary != files_kind("four").summary
    with pytest.raises(ValueError, match="no text"):
        files_kind(" \n")


def test_unit_ends_add_up(prompts: TextPrompts) -> None:
    units = ["The harbor was quiet. ", "Nobody spoke ", "a word.\n"]
    ends = unit_ends(units, prompts.tokenizer)
    assert ends[-1] == len(prompts.tokenizer.encode("".join(units)).ids)
    assert (np.diff(ends) > 0).all()
