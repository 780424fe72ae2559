"""Passkeys in haystacks: one sentence to find in a context of any length.

Haystacks: `noise` (the same few sentences), `prose` (a generated book), `code` (Python sources of
an installed package). The passkey is asked for as a user would ask, through the product's own
prompt and answer mode.
"""

import io
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import transformers

from hipcli.documents import ReadOptions, read_sources
from hipcli.engine.config import CacheConfig, GenerationConfig
from hipcli.engine.engine import Engine
from hipcli.engine.events import Result
from hipcli.engine.request import AskRequest, InputRecord
from hipcli.prompts import assemble, question_ids, question_range

sys.path.insert(0, str(Path(__file__).parents[2] / "samples"))
from make_book import TOKENS_PER_WORD, passkey_plant, plant_passkey, write_book  # noqa: E402

QUESTION = "What is the pass key?"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One passkey asked for.

    Args:
        right: the answer holds the passkey.
        answer: what was said.
        rank: place of the first evidence passage that holds the passkey, 0 is the best, -1 none.
        context_tokens: length of the prompt before the question.
    """

    right: bool
    answer: str
    rank: int
    context_tokens: int


@cache
def _code_files() -> tuple[Path, ...]:
    models = Path(transformers.__file__).parent / "models"
    files = sorted(models.glob("*/modeling_*.py"))
    random.Random(1).shuffle(files)
    return tuple(files)


def haystack(kind: str, num_tokens: int, seed: int, engine: Engine) -> str:
    """Text of about `num_tokens` tokens of the engine's tokenizer, cut at a line."""
    if kind == "code":
        pieces = _pieces(seed)
    else:
        out = io.StringIO()
        words = int(num_tokens / TOKENS_PER_WORD * 1.1)
        write_book(out, words, seed, style=kind, plants=())
        pieces = iter([out.getvalue()])
    text, length = "", 0
    while length < num_tokens:
        piece = next(pieces)
        text += piece
        length += len(engine.tokenizer.encode(piece).ids)
    kept = text[: int(len(text) * num_tokens / length)]
    return kept[: kept.rindex("\n") + 1]


def _pieces(seed: int) -> Iterator[str]:
    files = _code_files()
    while True:
        for index in range(seed * 17, seed * 17 + len(files)):
            yield files[index % len(files)].read_text("utf-8")


def ask_passkey(
    engine: Engine,
    kind: str,
    num_tokens: int,
    depth: float,
    seed: int,
    folder: Path,
    answer: str = "auto",
) -> Outcome:
    """Hide a passkey at `depth` (0 to 1) of a haystack and ask for it; nothing is cached."""
    passkey = str(random.Random(seed).randrange(10_000, 100_000))
    text = haystack(kind, num_tokens, seed, engine)
    if kind == "code":
        lines = text.splitlines(keepends=True)
        at = int(len(lines) * depth)
        text = "".join((*lines[:at], passkey_plant(passkey, depth).sentence + "\n", *lines[at:]))
    else:
        text, _ = plant_passkey(text, passkey, depth)
    file = folder / f"{kind}.txt"
    file.write_text(text, "utf-8")
    corpus = read_sources([str(file)], ReadOptions())
    context = assemble(corpus, engine.tokenizer, None)
    request = AskRequest(
        context_ids=context.ids.astype(np.int32),
        question_ids=[int(token) for token in question_ids(QUESTION, engine.tokenizer, None)],
        question_span=question_range(QUESTION, engine.tokenizer),
        prefix_tokens=context.documents[0].start_token,
        inputs=tuple(InputRecord(d.name, d.sha256) for d in corpus.documents),
        answer=answer,
        generation=GenerationConfig(max_new_tokens=24),
        cache=CacheConfig(None),
    )
    result = [event for event in engine.ask(request) if isinstance(event, Result)][0]
    rank = -1
    for place, passage in enumerate(result.evidence):
        ids = context.ids[max(0, passage.start_token - 16) : passage.end_token + 16]
        if passkey in engine.tokenizer.decode(ids):
            rank = place
            break
    return Outcome(passkey in result.answer, result.answer, rank, len(context.ids))
