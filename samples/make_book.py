"""Writes a book of any length from a seed: chapters of generated prose with facts planted in it.

A long text is needed wherever memory, speed or recall is tried out, and a real book would bring
somebody's copyright along. The prose is that of `hipcli.engine.evaluation.prose`; a few sentences,
the facts, are set into it whose place, question and answer are known. The same seed gives the same
book on every Python, in time linear in its length and without holding it in memory.

Tokens are estimated as words times `TOKENS_PER_WORD`, so that no tokenizer is needed; a word is
what `str.split` finds. Digits occur only in facts and chapter headings.

hip must be installed (`pip install .` in the folder above); the program says so if it is not.

Run: python samples/make_book.py --tokens 100000 --seed 7 -o book.txt --facts facts.json
Import: `write_book(out, num_words, seed) -> list[Fact]`, with this folder on `sys.path`
"""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import TextIO

try:
    from hipcli.engine.evaluation.draws import draw
    from hipcli.engine.evaluation.prose import Rules, read_grammar, tell_noise, tell_prose
    from hipcli.engine.evaluation.tasks import passkey_sentence
except ModuleNotFoundError as error:
    above = Path(__file__).resolve().parent.parent
    sys.exit(f"make_book.py uses hip, which is not installed here ({error}): pip install {above}")

# Measured on this prose with a byte-pair vocabulary of 49 thousand entries.
TOKENS_PER_WORD = 1.33
WORDS_PER_FACT = 2500
STYLES = ("prose", "noise")
SENTENCE_END = re.compile(r"(?<=[.!?]) (?=[A-Z])")


@dataclass(frozen=True, slots=True)
class Plant:
    """A sentence to be set into a book.

    Args:
        depth: where, from 0.0 (first paragraph) to 1.0 (last).
        sentence: the sentence, with its full stop.
        question: what it answers.
        answer: the string that a right answer contains.
    """

    depth: float
    sentence: str
    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class Fact:
    """A planted sentence and where it stands.

    Args:
        question, answer, sentence: as planted.
        chapter: number of the chapter, from 1.
        char_start: offset of the sentence from the start of the book, in characters (and in bytes:
            books are ASCII with newlines of one character).
        line: line of the book, from 1; a paragraph is a line.
        depth: char_start over the length of the book.
    """

    question: str
    answer: str
    sentence: str
    chapter: int
    char_start: int
    line: int
    depth: float


def draw_answer(rng: Random, kind: str, rules: Rules) -> str:
    """An answer that the generated prose does not contain."""
    if kind in ("year", "count", "code"):
        low, high = {"year": (1500, 1900), "count": (100, 1000), "code": (10000, 100000)}[kind]
        return str(low + int(rng.random() * (high - low)))
    pick = {name: [a[0] for a in rules[name]] for name in ("fact_first_name", "fact_surname")}
    if kind == "person":
        return f"{draw(rng, pick['fact_first_name'])} {draw(rng, pick['fact_surname'])}"
    syllables = [alternative[0] for alternative in rules["syllable"]]
    word = "".join(draw(rng, syllables) for _ in range(3))
    return word if kind == "word" else f"{word.capitalize()} Cross"


def make_plants(num_plants: int, rng: Random) -> list[Plant]:
    """Facts at even distances, no two about the same subject.

    Raises:
        ValueError: more are asked for than there are subjects.
    """
    rules = read_grammar()
    heads, tails = ([a[0] for a in rules[name]] for name in ("subject_head", "subject_tail"))
    if num_plants > len(heads) * len(tails):
        raise ValueError(f"num_plants is {num_plants}, at most {len(heads) * len(tails)} allowed")
    plants: list[Plant] = []
    taken: set[str] = set()
    while len(plants) < num_plants:
        subject = f"{draw(rng, heads)} {draw(rng, tails)}"
        if subject in taken:
            continue
        taken.add(subject)
        form = rules["fact"][len(plants) % len(rules["fact"])]
        kind = form[-1].rsplit("| ", 1)[1]
        given = {"subject": subject, "answer": draw_answer(rng, kind, rules)}
        text = "".join(given[p] if i % 2 else p for i, p in enumerate(form))
        sentence, question, _kind = text.split(" | ")
        depth = (len(plants) + 0.5) / num_plants
        plants.append(Plant(depth, sentence, question, given["answer"]))
    return plants


def passkey_plant(passkey: str, depth: float) -> Plant:
    """The sentence that gives a passkey away, for a depth from 0.0 to 1.0."""
    return Plant(depth, passkey_sentence(passkey), "What is the pass key?", passkey)


def plant_passkey(text: str, passkey: str, depth: float) -> tuple[str, int]:
    """Sets the passkey's sentence into any text, at the sentence boundary nearest to a depth.

    Returns: the longer text, and the offset of the sentence in it in characters.
    """
    boundaries = [0, *(match.end() for match in re.finditer(r"(?<=[.!?])\s+", text))]
    offset = min(boundaries, key=lambda boundary: abs(boundary - depth * len(text)))
    sentence = passkey_plant(passkey, depth).sentence
    return f"{text[:offset]}{sentence} {text[offset:]}", offset


class Ledger:
    """Writes a book and knows how far it has come."""

    def __init__(self, out: TextIO) -> None:
        self.out = out
        self.num_words = self.num_chars = 0
        self.line = 1
        self.facts: list[Fact] = []

    def write(self, paragraph: str) -> None:
        """Writes a paragraph on a line of its own and an empty line."""
        self.out.write(paragraph + "\n\n")
        self.num_words += len(paragraph.split())
        self.num_chars += len(paragraph) + 2
        self.line += 2

    def write_with(self, sentences: list[str], place: int, plant: Plant, chapter: int) -> None:
        """Writes a paragraph with a plant before its sentence number `place`."""
        before = "".join(f"{sentence} " for sentence in sentences[:place])
        self.facts.append(
            Fact(
                plant.question, plant.answer, plant.sentence, chapter,
                self.num_chars + len(before), self.line, 0.0,
            )
        )  # fmt: skip
        self.write(" ".join([*sentences[:place], plant.sentence, *sentences[place:]]))


def num_fitting(sentences: Sequence[str], room: float) -> int:
    """How many of the first sentences take up about `room` words."""
    total = 0
    for number, sentence in enumerate(sentences):
        length = len(sentence.split())
        if total + length / 2 > room:
            return number
        total += length
    return len(sentences)


def write_book(
    out: TextIO,
    num_words: int,
    seed: int,
    *,
    style: str = "prose",
    plants: Sequence[Plant] | None = None,
) -> list[Fact]:
    """Writes a book of about num_words words.

    Args:
        out: where the text goes; open a file with newline="\\n" or offsets will not be bytes.
        num_words: at least 1; the book is longer or shorter by about a sentence.
        seed: any int.
        style: "prose", or "noise" for the same few sentences over and over.
        plants: what is set in; one fact for each WORDS_PER_FACT words unless given.

    Returns: the facts in the order in which they stand.

    Raises:
        ValueError: an argument is out of range.
    """
    if num_words < 1 or style not in STYLES:
        raise ValueError(f"num_words {num_words} must be at least 1, style {style!r} in {STYLES}")
    rng = Random(seed)
    if plants is None:
        plants = make_plants(min(500, max(1, round(num_words / WORDS_PER_FACT))), rng)
    waiting = sorted(plants, key=lambda plant: plant.depth, reverse=True)
    ledger = Ledger(out)
    chapter = 1
    for chapter, paragraph in tell_prose(rng) if style == "prose" else tell_noise(rng):
        sentences = SENTENCE_END.split(paragraph)
        fitting = max(1, num_fitting(sentences, num_words - ledger.num_words))
        wait = waiting[-1].depth * num_words - ledger.num_words if waiting else num_words
        # A fact inside somebody's speech would be that person's claim: wait for narration.
        narration = '"' not in paragraph and not paragraph.startswith("Chapter ")
        if narration and len(paragraph.split()) > wait:
            place = num_fitting(sentences[:fitting], wait)
            ledger.write_with(sentences[:fitting], place, waiting.pop(), chapter)
        else:
            ledger.write(" ".join(sentences[:fitting]))
        if fitting < len(sentences) or ledger.num_words >= num_words:
            break
    while waiting:
        ledger.write_with([], 0, waiting.pop(), chapter)
    return [replace(fact, depth=fact.char_start / ledger.num_chars) for fact in ledger.facts]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Writes a book of any length with known facts.")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--tokens", type=int, default=100_000, help="about so many tokens")
    length.add_argument("--words", type=int, help="about so many words")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--style", choices=STYLES, default="prose")
    parser.add_argument("--passkey", help="plant only this passkey, no other facts")
    parser.add_argument("--depth", type=float, default=0.5, help="of the passkey, 0.0 to 1.0")
    parser.add_argument("-o", "--output", type=Path, help="the book; stdout unless given")
    parser.add_argument("--facts", type=Path, help="JSON file for the planted facts")
    arguments = parser.parse_args()
    if arguments.words is None:
        arguments.words = round(arguments.tokens / TOKENS_PER_WORD)
    if arguments.words < 1:
        parser.error("--tokens and --words must be at least 1")
    if not 0.0 <= arguments.depth <= 1.0:
        parser.error(f"--depth is {arguments.depth}, must lie between 0.0 and 1.0")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    plants = [passkey_plant(arguments.passkey, arguments.depth)] if arguments.passkey else None
    settings = {"style": arguments.style, "plants": plants}
    if arguments.output is None:
        facts = write_book(sys.stdout, arguments.words, arguments.seed, **settings)
    else:
        with arguments.output.open("w", encoding="ascii", newline="\n") as out:
            facts = write_book(out, arguments.words, arguments.seed, **settings)
    if arguments.facts:
        record = {
            "seed": arguments.seed,
            "style": arguments.style,
            "num_words": arguments.words,
            "facts": [asdict(fact) for fact in facts],
        }
        arguments.facts.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
