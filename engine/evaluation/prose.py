"""Generated prose: expands the grammar in `grammar.txt` into chapters without end.

Haystacks of `hip eval` are made of it, and the books of `samples/make_book.py`.

A chapter has a town, a keepsake that is looked for, a neighbour and a cast of four; each scene has
a hero and another, of different sex so that pronouns are clear. No sentence is meant to come twice
in a book: alternatives are drawn like cards, and a sentence that was seen before is drawn again.
"""

import re
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random

from hipcli.engine.evaluation.draws import shuffled

GRAMMAR = Path(__file__).resolve().with_name("grammar.txt")
WORDS_PER_CHAPTER = 2500

Rules = dict[str, list[list[str]]]


@cache
def read_grammar(path: Path = GRAMMAR) -> Rules:
    """The rules by name; an alternative is text and rule names in turn, beginning with text."""
    rules: Rules = {}
    name = ""
    for line in path.read_text(encoding="ascii").splitlines():
        if line.startswith("["):
            name = line.strip("[]")
            rules[name] = []
        elif line and not line.startswith("#"):
            rules[name].append(re.split(r"\{(\w+)\}", line))
    return rules


class Teller:
    """Expands the grammar, for one book."""

    def __init__(self, rules: Rules, rng: Random) -> None:
        self.rules, self.rng = rules, rng
        self.scene: dict[str, str] = {}
        self.bags: dict[str, list[int]] = {}
        self.seen: set[int] = set()

    def words(self, name: str) -> list[str]:
        """The alternatives of a rule that names no other rule."""
        return [alternative[0] for alternative in self.rules[name]]

    def pick(self, name: str) -> list[str]:
        """An alternative of a rule; each is used once before any comes again."""
        bag = self.bags.get(name)
        if not bag:
            bag = self.bags[name] = shuffled(self.rng, range(len(self.rules[name])))
        return self.rules[name][bag.pop()]

    def expand(self, name: str) -> str:
        """A text for a rule; a capital in the name asks for a capital in the text."""
        key = name.lower()
        text = self.scene.get(key)
        if text is None:
            parts = self.pick(key)
            text = "".join(self.expand(p) if i % 2 else p for i, p in enumerate(parts))
        if name[0].isupper():
            # "A~" at the start still stands for an article.
            return text[:1].upper() + text[1:]
        return text

    def unseen(self, name: str) -> str:
        """A tidied text for a rule, new to this book if a few attempts find one."""
        for _attempt in range(6):
            text = tidy(self.expand(name))
            # Not hash(), which differs from run to run; a collision costs an attempt, no more.
            key = zlib.crc32(text.encode())
            if key not in self.seen:
                self.seen.add(key)
                break
        return text

    def set_chapter(self) -> list[tuple[str, str]]:
        """Chooses the places and things of a chapter; returns its cast, two women and two men."""
        self.scene = {}
        town, far_town = self.expand("town_name"), self.expand("town_name")
        keepsake = f"{self.expand('adj_thing')} {self.expand('keepsake_noun')}"
        neighbour = self.expand("surname")
        self.scene = {
            "town": town,
            "far_town": far_town,
            "keepsake": f"the {keepsake} of {self.expand('estate')}",
            "neighbour": f"{neighbour} the {self.expand('trade')}",
            "neighbour_name": neighbour,
        }
        return [(sex, self.expand(sex)) for sex in ("woman", "man", "woman", "man")]

    def set_scene(self, cast: list[tuple[str, str]]) -> None:
        """Chooses who acts; hero and other are of different sex, so that pronouns are clear."""
        first = int(self.rng.random() * 4)
        hero, other, third = (cast[(first + step) % 4] for step in (0, 1, 2))
        pronouns = {
            "woman": ("she", "her", "her", "herself"),
            "man": ("he", "him", "his", "himself"),
        }
        for prefix, (sex, name) in (("", hero), ("o", other)):
            for role, pronoun in zip(("he", "him", "his", "himself"), pronouns[sex], strict=True):
                self.scene[prefix + role] = pronoun
            # A surname belongs to a first name for the length of the book.
            families = self.words("family")
            family = families[zlib.crc32(name.encode()) % len(families)]
            role = "other" if prefix else "hero"
            self.scene[role], self.scene["full" + role] = name, f"{name} {family}"
        self.scene["third"] = third[1]


def tidy(text: str) -> str:
    """Articles, the capital after a full stop, and the comma before "said"."""
    text = re.sub(r"\b([Aa])~ (?=[aeiouAEIOU])", r"\1n ", text)
    text = re.sub(r"\b([Aa])~ ", r"\1 ", text)
    text = re.sub(r'\." (?=[a-z])', '," ', text)
    text = re.sub(r"(?<=[a-z][.!?] )[a-z]", lambda match: match[0].upper(), text)
    return text[:1].upper() + text[1:]


def tell_prose(rng: Random) -> Iterator[tuple[int, str]]:
    """Chapter numbers and paragraphs without end; a chapter's heading comes first."""
    teller = Teller(read_grammar(), rng)
    chapter = 0
    while True:
        chapter += 1
        num_words = 0
        cast = teller.set_chapter()
        teller.set_scene(cast)
        yield chapter, f"Chapter {chapter}. {tidy(teller.expand('chapter_title'))}"
        while num_words < WORDS_PER_CHAPTER:
            teller.set_scene(cast)
            parts = teller.pick("scene")
            text = "".join(teller.unseen(p) if i % 2 else p for i, p in enumerate(parts))
            for paragraph in text.split(" / "):
                num_words += len(paragraph.split())
                yield chapter, paragraph


def tell_noise(_rng: Random) -> Iterator[tuple[int, str]]:
    """One chapter that repeats the filler sentences of the grammar without end."""
    sentences = [alternative[0] for alternative in read_grammar()["noise"]]
    yield 1, "Chapter 1. The Same Again"
    while True:
        yield 1, " ".join(sentences)
