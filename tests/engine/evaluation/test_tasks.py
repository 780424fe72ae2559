"""Tasks: what is asked stands in the text, once, and answers follow from the needles."""

import re
from collections import Counter
from itertools import islice
from random import Random

import pytest

from hipcli.engine.evaluation import wordings
from hipcli.engine.evaluation.draws import digits, hex_word, some
from hipcli.engine.evaluation.haystacks import HAYSTACKS
from hipcli.engine.evaluation.prose import GRAMMAR
from hipcli.engine.evaluation.tasks import TASKS
from hipcli.engine.evaluation.words import KEYS, NAMES, NUM_CODED, coded_word

# Words that any two English sentences share.
COMMON = set(
    re.findall(
        r"\w+",
        """who which what is are was were a an the of to in on by at for not has have with through
        that as too it its does do from and or their by this became up than s""",
    )
)


@pytest.mark.parametrize("name", TASKS)
def test_a_draft_depends_on_its_seed_alone(name: str) -> None:
    task = TASKS[name]
    first, again, other = (task.make(Random(seed), 0.3) for seed in ("a", "a", "b"))
    assert (first.needles, first.probes) == (again.needles, again.probes)
    assert first.probes != other.probes or first.needles != other.needles
    if first.units is not None:
        assert first.units(50) == again.units(50)
    assert (first.units is not None) == task.own_text
    assert all(bool(probe.needles) == task.has_needles for probe in first.probes)
    assert all(0 <= needle.depth <= 1 for needle in first.needles)


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.has_needles])
@pytest.mark.parametrize("seed", range(5))
def test_answers_stand_in_the_needles_they_name(name: str, seed: int) -> None:
    draft = TASKS[name].make(Random(seed), 0.5)
    for probe in draft.probes:
        evidence = " ".join(draft.needles[number].sentence for number in probe.needles)
        others = [n.sentence for i, n in enumerate(draft.needles) if i not in probe.needles]
        for answer in probe.answers:
            assert answer in evidence
            if not probe.rivals:
                assert not any(answer in sentence for sentence in others)
    if TASKS[name].has_depth:
        assert draft.needles[draft.probes[0].needles[0]].depth == 0.5


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("hops", [1, 2, 3])
def test_stories_answer_as_they_are_told(hops: int, seed: int) -> None:
    """Sentences are replayed by their words alone."""
    draft = TASKS[f"facts_{hops}"].make(Random(seed), 0.5)
    told = [needle.sentence for needle in sorted(draft.needles, key=lambda n: n.depth)]
    assert told == [needle.sentence for needle in draft.needles]
    at: dict[str, str] = {}
    carrier: dict[str, str] = {}
    been: dict[str, list[str]] = {}
    for sentence in told:
        person = sentence.split()[0]
        if match := re.search(r"went to the (\w+)\.", sentence):
            at[person] = match[1]
            for thing in [t for t, who in carrier.items() if who == person]:
                been[thing].append(match[1])
        elif match := re.search(r"picked up the (\w+)\.", sentence):
            assert person in at and match[1] not in carrier
            carrier[match[1]] = person
            been[match[1]] = []
    (probe,) = draft.probes
    assert len(probe.needles) == hops
    subject = re.match(r"Where (?:is|was) (?:the )?(\w+)", probe.question)[1]
    if hops == 1:
        expected = at[subject]
    elif hops == 2:
        expected = at[carrier[subject]]
    else:
        place = re.search(r"came to the (\w+)\?", probe.question)[1]
        expected = been[subject][been[subject].index(place) - 1]
        assert been[subject][-1] == place
    assert probe.answers == (expected,)
    assert expected not in probe.rivals


@pytest.mark.parametrize(("sentence", "question"), wordings.UNSHARED)
def test_unshared_questions_share_no_word(sentence: str, question: str) -> None:
    text, asked = (set(re.findall(r"\w+", x.lower())) - COMMON for x in (sentence, question))
    # The first letters stand in for word stems.
    assert not {word[:4] for word in text} & {word[:4] for word in asked}
    assert "{name}" in sentence


def test_generated_prose_gives_nothing_away() -> None:
    grammar = {word.lower() for word in re.findall(r"\w+", GRAMMAR.read_text("ascii"))}
    assert not {name.lower() for name in NAMES} & grammar
    for sentence, question in wordings.UNSHARED:
        words = set(re.findall(r"\w+", f"{sentence} {question}".lower())) - COMMON
        assert len(words - grammar) >= 2, (sentence, words & grammar)


def test_words_are_distinct() -> None:
    assert len(set(KEYS)) == len(KEYS) >= 64
    assert len(set(NAMES)) == len(NAMES)
    assert len({coded_word(number) for number in range(20_000)}) == 20_000
    assert NUM_CODED > 20_000


def test_counting_tasks_count_what_they_say() -> None:
    draft = TASKS["common_words"].make(Random(1), 0.0)
    counts = Counter(unit.split()[1] for unit in draft.units(1500))
    assert {word for word, _ in counts.most_common(10)} == set(draft.probes[0].answers)
    assert counts.most_common(11)[-1][1] == 3
    draft = TASKS["frequent_words"].make(Random(1), 0.0)
    counts = Counter(unit.strip() for unit in draft.units(1500))
    ranks = [word for word, _ in counts.most_common(4)]
    assert ranks == ["...", *draft.probes[0].answers]


@pytest.mark.parametrize("kind", HAYSTACKS)
def test_haystacks_go_on_and_depend_on_their_seed(kind: str) -> None:
    def start(seed: str) -> list[str]:
        return list(islice(HAYSTACKS[kind].units(Random(seed)), 300))

    assert start("a") == start("a")
    assert (start("a") != start("b")) == (kind != "noise")
    assert all(unit.endswith((" ", "\n")) for unit in start("a"))


def test_draws() -> None:
    rng = Random(3)
    assert len(digits(rng, 7)) == 7
    assert hex_word(rng)[0].isalpha() and len(hex_word(rng)) == 8
    assert sorted(some(rng, range(5), 5)) == list(range(5))
    with pytest.raises(ValueError, match="6 items"):
        some(rng, range(5), 6)
