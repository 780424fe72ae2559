"""Whether evidence holds: does the first passage behind a right answer hold the fact?

    python benchmarks/citations.py [--models-dir DIR] [--model smollm2] [--device cpu]
        [--samples manual,bookshop,notebook] [--books 3] [--book-words 4500] [--book-facts 18]

Asks the questions of `samples/facts.json`, and of generated books with facts planted in them, as
`hip ask --json` does. For each right answer it looks where the fact stands (page, cell, or line)
and whether the first row of `evidence[]`, and footnote [1] of `--cite`, is there. Prints a line for
each miss, a table, and one line of JSON. The aim: 95 % of right answers.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SAMPLES = ROOT / "samples"
sys.path[:0] = [str(ROOT), str(SAMPLES)]

import hipcli  # noqa: E402  (the checkout is put on the path first)

if find_spec("hipcli.engine") is None:
    # A checkout that was not installed keeps the lower houses at its top.
    hipcli.__path__.append(str(ROOT))

from make_book import make_plants, write_book  # noqa: E402

NAMES = {"manual": "manual.pdf", "bookshop": "bookshop", "notebook": "notebook.ipynb"}
MAX_NEW_TOKENS = 40


@dataclass(frozen=True, slots=True)
class Fact:
    """A question, the string that a right answer contains, and where it stands.

    Args:
        file: path below the document, "" for a document that is one file.
        page: of a PDF, or cell of a notebook, from 1; None without pages.
        line: of the file, from 1; None where only the page is known.
    """

    question: str
    answer: str
    file: str = ""
    page: int | None = None
    line: int | None = None

    def is_at(self, row: Mapping[str, Any]) -> bool:
        """Whether a row of `evidence[]` or `citations[]` is where the fact stands."""
        if self.page is not None:
            return row["page"] == self.page
        here = row["line_start"] <= (self.line or 0) <= row["line_end"]
        return here and str(row["path"]).endswith(self.file)


@dataclass(slots=True)
class Score:
    """Counts of one kind of document; those of evidence and footnotes are of right answers."""

    asked: int = 0
    right: int = 0
    evidence: int = 0
    footnote: int = 0
    any_footnote: int = 0


def main() -> None:
    args = parse_arguments()
    options = {"model": args.model, "device": args.device, "no_cache": True}
    options |= {"max_new_tokens": MAX_NEW_TOKENS}
    if args.models_dir:
        options["models_dir"] = str(args.models_dir)
    scores: dict[str, Score] = defaultdict(Score)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for kind, path, facts in documents(args, Path(folder)):
            for fact, document in ask(path, facts, options):
                count(scores[kind], fact, document, kind)
            print(
                f"{time.perf_counter() - began:6.0f} s  {kind}: {asdict(scores[kind])}", flush=True
            )
    total = Score(*(sum(column) for column in zip(*map(values, scores.values()), strict=True)))
    print(table({**scores, "all": total}))
    shown = {kind: asdict(score) for kind, score in scores.items()}
    print(json.dumps({"model": args.model, **shown, "all": asdict(total), "share": share(total)}))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--models-dir", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--samples", default=",".join(NAMES), help="which of them, with commas")
    parser.add_argument("--books", type=int, default=3)
    parser.add_argument("--book-words", type=int, default=4500)
    parser.add_argument("--book-facts", type=int, default=18)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def documents(args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Path, list[Fact]]]:
    """Kind, path and facts of each document: those of samples/, then books made in `folder`."""
    kept = json.loads((SAMPLES / "facts.json").read_text("utf-8"))["documents"]
    by_path = {document["path"]: document["facts"] for document in kept}
    for name in filter(None, args.samples.split(",")):
        yield name, SAMPLES / NAMES[name], [sample_fact(row) for row in by_path[NAMES[name]]]
    for number in range(args.books):
        seed = args.seed + number
        path = folder / f"book{seed}.txt"
        with path.open("w", encoding="ascii", newline="\n") as out:
            plants = make_plants(args.book_facts, Random(seed))
            told = write_book(out, args.book_words, seed, plants=plants)
        yield "book", path, [Fact(fact.question, fact.answer, line=fact.line) for fact in told]


def sample_fact(row: Mapping[str, Any]) -> Fact:
    """A row of `samples/facts.json`."""
    page = row.get("page", row.get("cell"))
    return Fact(row["question"], row["answer"], row.get("file", ""), page, row.get("line"))


def ask(
    path: Path, facts: Sequence[Fact], options: Mapping[str, Any]
) -> Iterator[tuple[Fact, dict[str, Any]]]:
    """Each fact with the JSON document of the answer to its question."""
    with hipcli.open(str(path), **options) as text:
        for fact in facts:
            yield fact, text.ask(fact.question).document


def count(score: Score, fact: Fact, document: Mapping[str, Any], kind: str) -> None:
    """Adds one answer to a score, and prints what does not hold."""
    score.asked += 1
    if fact.answer.casefold() not in document["answer"].casefold():
        return
    footnotes = [row for row in document["citations"] if row["verified"]]
    held = {
        "evidence": any(map(fact.is_at, document["evidence"][:1])),
        "footnote": any(map(fact.is_at, footnotes[:1])),
        "any_footnote": any(map(fact.is_at, footnotes)),
    }
    score.right += 1
    for name, holds in held.items():
        setattr(score, name, getattr(score, name) + holds)
    if not all(held.values()):
        missed = ", ".join(name for name, holds in held.items() if not holds)
        first = footnotes[0]["quote"] if footnotes else None
        print(f"  {kind}: {missed} of {fact.question!r} ({document['answer']!r}): {first!r}")


def values(score: Score) -> tuple[int, ...]:
    return tuple(asdict(score).values())


def share(score: Score) -> dict[str, float]:
    """Parts of the right answers whose first evidence, or first footnote, holds the fact."""
    right = max(1, score.right)
    return {
        "evidence": round(score.evidence / right, 4),
        "footnote": round(score.footnote / right, 4),
    }


def table(scores: Mapping[str, Score]) -> str:
    """A line for each kind of document."""
    lines = [f"{'':10}{'asked':>7}{'right':>7}{'evidence':>10}{'footnote [1]':>14}{'any':>6}"]
    for kind, score in scores.items():
        asked, right, *held = values(score)
        parts = [f"{number / max(1, right):.1%}" for number in held]
        lines.append(f"{kind:10}{asked:7}{right:7}{parts[0]:>10}{parts[1]:>14}{parts[2]:>7}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
