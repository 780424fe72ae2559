"""The tasks: what each hides in a text, and what it asks.

`TASKS` is the table of all of them. A task is a function of a chance and a depth; those whose
needles are spread over the whole text, or that have none, take no depth.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from hipcli.engine.evaluation import counting, stories, wordings
from hipcli.engine.evaluation.case import Draft, Needle, Probe
from hipcli.engine.evaluation.draws import digits, draw, hex_word, integer, some
from hipcli.engine.evaluation.words import KEYS

# How many of the look-alikes in a text are asked for.
ASKED = 4


class Task(NamedTuple):
    """A row of the table.

    `has_depth` is for tasks that take one, `own_text` for those that need no haystack,
    `has_needles` for those whose evidence stands in certain places.
    """

    summary: str
    make: Callable[[Random, float], Draft]
    has_depth: bool
    own_text: bool = False
    has_needles: bool = True


def passkey_sentence(passkey: str) -> str:
    """The sentence that gives a passkey away."""
    return f"Remember this: the pass key is {passkey}. The pass key is {passkey}."


def _passkey(rng: Random, depth: float) -> Draft:
    passkey = digits(rng, 5)
    probe = Probe("What is the pass key?", (passkey,), (0,))
    return Draft((Needle(passkey_sentence(passkey), depth),), (probe,))


def _number(rng: Random, depth: float) -> Draft:
    number = digits(rng, 10)
    sentence = f"Remember this: the serial number is {number}. The serial number is {number}."
    probe = Probe("What is the serial number?", (number,), (0,))
    return Draft((Needle(sentence, depth),), (probe,))


def _json_few(rng: Random, depth: float) -> Draft:
    pairs = [f'"{hex_word(rng)}": "{hex_word(rng)}"' for _ in range(8)]
    asked = integer(rng, 0, len(pairs))
    lines = [f"{pair}," for pair in pairs]
    lines[0], lines[-1] = "{" + lines[0], pairs[-1] + "}"
    needles = tuple(Needle(line, depth) for line in lines)
    return Draft(needles, (_pair_probe(pairs[asked], asked),))


def _json_many(rng: Random, depth: float) -> Draft:
    def units(count: int) -> list[str]:
        return [f'"{hex_word(rng)}": "{hex_word(rng)}",\n' for _ in range(count)]

    pair = f'"{hex_word(rng)}": "{hex_word(rng)}"'
    needle = Needle(f"{pair},", depth)
    return Draft((needle,), (_pair_probe(pair, 0),), units, '{\n"first": "none",\n', "}\n")


def _pair_probe(pair: str, needle: int) -> Probe:
    key, value = (part.strip('"') for part in pair.split(": "))
    question = f'What is the value of the key "{key}" in the JSON object?'
    return Probe(question, (value,), (needle,), max_new_tokens=32)


def _secrets(rng: Random, keys: Sequence[str], depths: Sequence[float]) -> list[tuple[Needle, str]]:
    """A needle for each key, and the number it hides."""
    pairs = []
    for key, depth in zip(keys, depths, strict=True):
        number = digits(rng, 7)
        pairs.append((Needle(wordings.secret_sentence(key, number), depth), number))
    return pairs


def _single(rng: Random, depth: float) -> Draft:
    return _one_of(1, rng, depth)


def _multi_key(rng: Random, depth: float) -> Draft:
    return _one_of(4, rng, depth)


def _one_of(count: int, rng: Random, depth: float) -> Draft:
    keys = some(rng, KEYS, count)
    depths = [depth, *(rng.random() for _ in keys[1:])]
    pairs = _secrets(rng, keys, depths)
    probe = Probe(wordings.OWN.format(key=keys[0]), (pairs[0][1],), (0,))
    return Draft(tuple(needle for needle, _ in pairs), (probe,))


def _multi_value(rng: Random, depth: float) -> Draft:
    key = draw(rng, KEYS)
    numbers = [digits(rng, 7) for _ in range(4)]
    needles = tuple(
        Needle(f"One secret number of the {key} is {number}.", rng.random()) for number in numbers
    )
    question = f"What are all four secret numbers of the {key}?"
    probe = Probe(question, tuple(numbers), (0, 1, 2, 3), max_new_tokens=64)
    return Draft(needles, (probe,))


def _multi_query(rng: Random, depth: float) -> Draft:
    keys = some(rng, KEYS, 4)
    pairs = _secrets(rng, keys, [rng.random() for _ in keys])
    first, second, third, last = (f"the {key}" for key in keys)
    question = f"What are the secret numbers of {first}, {second}, {third} and {last}?"
    numbers = tuple(number for _, number in pairs)
    probe = Probe(question, numbers, (0, 1, 2, 3), max_new_tokens=64)
    return Draft(tuple(needle for needle, _ in pairs), (probe,))


def _variables(rng: Random, depth: float) -> Draft:
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    names = ["".join(draw(rng, letters) for _ in range(5)) for _ in range(5)]
    value = digits(rng, 5)
    sentences = [f"Let the variable {names[0]} be {value}."]
    for before, name in zip(names[:-1], names[1:], strict=True):
        sentences.append(f"Let the variable {name} be equal to {before}.")
    depths = sorted(rng.random() for _ in sentences)
    question = f"Which five variables have the value {value}? Name all of them."
    probe = Probe(question, tuple(names), (0, 1, 2, 3, 4), max_new_tokens=48)
    return Draft(tuple(map(Needle, sentences, depths)), (probe,))


def _alike(count: int) -> Callable[[Random, float], Draft]:
    def make(rng: Random, depth: float) -> Draft:
        keys = some(rng, KEYS, count)
        depths = some(rng, [(place + rng.random()) / count for place in range(count)], count)
        pairs = _secrets(rng, keys, depths)
        probes = []
        for number in range(ASKED):
            answer = (pairs[number][1],)
            own = wordings.OWN.format(key=keys[number])
            other = draw(rng, wordings.REWORDED).format(key=keys[number])
            probes += [
                Probe(own, answer, (number,)),
                Probe(other, answer, (number,), wording="reworded"),
            ]
        return Draft(tuple(needle for needle, _ in pairs), tuple(probes))

    return make


TASKS = {
    "passkey": Task("a five-digit pass key", _passkey, True),
    "number": Task("a ten-digit number", _number, True),
    "json_few": Task("one of eight key-value pairs of a JSON object", _json_few, True),
    "json_many": Task("a pair of a JSON object as long as the text", _json_many, True, True),
    "single": Task("one secret number", _single, True),
    "multi_key": Task("one of four secret numbers", _multi_key, True),
    "multi_value": Task("all four secret numbers of one key", _multi_value, False),
    "multi_query": Task("four secret numbers at once", _multi_query, False),
    "alike_8": Task("four of 8 look-alikes, in the text's words and reworded", _alike(8), False),
    "alike_64": Task("four of 64 look-alikes, in the text's words and reworded", _alike(64), False),
    "unshared": Task("a question without a word of the text", wordings.unshared, True),
    "variables": Task("a chain of five variables with one value", _variables, False),
    "common_words": Task(
        "the ten most common words of a list", counting.common_words, False, True, False
    ),
    "frequent_words": Task(
        "the three most frequent coded words", counting.frequent_words, False, True, False
    ),
    "facts_1": Task("where a person is", stories.one_fact, False),
    "facts_2": Task("where a thing is that a person carries", stories.two_facts, False),
    "facts_3": Task("where a carried thing was before", stories.three_facts, False),
}
