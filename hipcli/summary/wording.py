"""What the model is asked for a summary, and how long an answer may be."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

# Changes whenever a wording below does: parts kept with a session were asked for in other words.
VERSION = 2

DEFAULT_WORDS = 400
# Of all words this share goes to the synthesis, the rest to the parts.
_SYNTHESIS_SHARE = 0.4
_MIN_PART_WORDS, _MAX_PART_WORDS = 15, 120
# Tokens a word takes, with room for names and numbers.
_TOKENS_A_WORD = 2.0
_MARKS = (".", "!", "?", "。", '"', "”")
_SENTENCE_END = re.compile(r"(?<=[.!?]) +|(?<=。)")
_NO_LETTER = re.compile(r"\W")
_LABEL = re.compile(r"(?:(?:question|answer|summary) ?: *)+", re.IGNORECASE)
# A shorter sentence may be in the question by chance.
_LEAST_ECHO = 12
# Fewer words than this say nothing about anything.
_LEAST_WORDS = 3


@dataclass(frozen=True, slots=True)
class Length:
    """Words of a summary and of its parts."""

    part_words: int
    synthesis_words: int


def lengths(words: int, num_parts: int) -> Length:
    """How many words of `words` each of `num_parts` parts gets, and the synthesis."""
    if num_parts <= 1:
        return Length(words, words)
    each = int(words * (1 - _SYNTHESIS_SHARE) / num_parts)
    part = min(max(each, _MIN_PART_WORDS), _MAX_PART_WORDS)
    return Length(part, max(int(words * _SYNTHESIS_SHARE), _MIN_PART_WORDS))


def max_tokens(words: int) -> int:
    """Tokens an answer of that many words may take."""
    return int(words * _TOKENS_A_WORD) + 16


def of_section(title: str, document: str, kind: str, words: int, focus: str) -> str:
    """Asks for the summary of one section.

    Chosen among eight wordings with the default model: asked to "summarize the part", it repeats
    the question, and in its own words it tells of something else.
    """
    what = f'"{title}"' if title == document else f'"{title}" of {document}'
    if kind == "code":
        return f"What does {what} do? Answer in {words} words.{_on(focus)}"
    return f"Write a short summary of {what} in {words} words.{_on(focus)}"


def of_notes(what: str, words: int, focus: str) -> str:
    """Asks for one summary of notes on the parts of `what`."""
    return f"Write a summary of the notes on {what} in {words} words.{_on(focus)}"


def _on(focus: str) -> str:
    return f" Pay attention to this above all: {focus}" if focus else ""


def in_place_of_synthesis(names: Sequence[str], commands: Sequence[str]) -> str:
    """What can be said for sure where the model says nothing: what there is, how it is run."""
    run = f" It is run with: {'; '.join(commands)}." if commands else ""
    return f"It consists of: {'; '.join(names)}.{run}"


def says_something(text: str) -> bool:
    """False for an answer such as "1."."""
    return len([word for word in text.split() if any(map(str.isalpha, word))]) >= _LEAST_WORDS


def whole_sentences(text: str, ended: bool, question: str = "") -> str:
    """An answer as one paragraph that says nothing twice, and not what was asked.

    Args:
        question: what was asked, which a weak model repeats.
        ended: False when the answer ran into its limit: it then ends with its last whole sentence.
    """
    sentences = _SENTENCE_END.split(" ".join(text.split()))
    if not ended and len(sentences) > 1 and not sentences[-1].endswith(_MARKS):
        sentences.pop()
    # A weak model goes round in circles.
    first: dict[str, str] = {}
    asked = _key(question)
    for labelled in sentences:
        sentence = _LABEL.sub("", labelled, count=1) if _LABEL.match(labelled) else labelled
        if len(_key(sentence)) < _LEAST_ECHO or _key(sentence) not in asked:
            first.setdefault(_key(sentence), sentence)
    return " ".join(first.values()).strip()


def _key(text: str) -> str:
    """The letters and digits alone."""
    return _NO_LETTER.sub("", text).lower()
