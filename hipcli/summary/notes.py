"""Notes on the parts of documents as a context of their own, short enough for one prompt."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hipcli.documents import Corpus
from hipcli.prompts import Context, assemble

if TYPE_CHECKING:
    from hipcli.engine.tokenizer import Tokenizer

# Every model reads this much with attention to all of it.
NOTES_TOKENS = 1024


def grouped(notes: Sequence[str], tokenizer: "Tokenizer") -> list[list[str]]:
    """`notes` in order, in groups of at most NOTES_TOKENS tokens; each holds at least one."""
    groups: list[list[str]] = []
    room = 0
    for note in notes:
        tokens = len(tokenizer.encode(note).ids) + 4
        if not groups or tokens > room:
            groups.append([])
            room = NOTES_TOKENS
        groups[-1].append(note)
        room -= tokens
    return groups


def notes_context(notes: Sequence[str], tokenizer: "Tokenizer", system: str | None) -> Context:
    """The notes as the one document of a context."""
    text = "".join(f"- {note}\n" for note in notes)
    return assemble(Corpus.of_text("notes", text), tokenizer, system)
