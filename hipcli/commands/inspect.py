"""`hip inspect`: what `hip ask` would read, without asking a model."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hipcli.config import arguments
from hipcli.config.options import (
    CACHE,
    COUNT,
    JSON,
    MODEL,
    MODELS_DIR,
    OUTPUT,
    PROGRESS,
    READING,
    TALK,
)
from hipcli.config.parameters import takes
from hipcli.config.settings import Settings
from hipcli.engine.errors import ModelError
from hipcli.runs import counting
from hipcli.runs.checks import check_reading
from hipcli.runs.material import input_rows
from hipcli.terminal import formatting, token_tree
from hipcli.terminal.console import Console
from hipcli.terminal.output import SCHEMA_VERSION, columns, open_sink
from hipcli.terminal.progress import ProgressView
from hipcli.terminal.report import warning_row

if TYPE_CHECKING:
    from hipcli.documents import Corpus


# Tokens of a page of keys and values, and the numbers a page's summary adds per head and channel
# to the two of each token.
PAGE_TOKENS = 64
SUMMARY_ROWS = 2


@dataclass(frozen=True, slots=True)
class Counted:
    """What was counted.

    Args:
        unit: words, tokens, or the name of a vocabulary.
        counts: of each document of the corpus.
        model: `model` of the JSON document; None when no model is involved.
        cache_bytes: disk space of a session; None when unknown.
    """

    unit: str
    counts: list[int]
    model: dict[str, Any] | None = None
    cache_bytes: int | None = None


@takes(COUNT, MODEL, MODELS_DIR, READING, CACHE, JSON, OUTPUT, PROGRESS, TALK)
def inspect(
    context: typer.Context,
    sources: Annotated[list[str] | None, typer.Argument(metavar="SOURCE...")] = None,
    text: Annotated[
        bool, typer.Option("--text", help="Print the text that the model would get, and stop.")
    ] = False,
    tree: Annotated[
        bool, typer.Option("--tree", help="Show which folders and files the tokens go to.")
    ] = False,
) -> int:
    """Show what would be read: files, pages, tokens, encodings, and what is left out and why.

    \b
    hip inspect book.pdf
    hip inspect src/ --count words
    hip inspect . --tree
    hip inspect report.pdf --text | less
    hip inspect . --json | jq .totals
    """
    settings = Settings.of(context)
    console: Console = context.obj
    values = settings.values
    check_reading(settings)
    given = arguments.read_sources(console, sources or [], values["files_from"], values["null"])
    with console.libraries_kept_quiet(), open_sink(console, values["output"]) as sink:
        corpus = _read(console, settings, given)
        for warning in corpus.warnings:
            console.warn(warning.message)
        if text:
            from hipcli.prompts import render

            sink.write(render(corpus))
            return 0
        document = _document(corpus, _count(console, settings, corpus), settings.cache_root)
        unit = "words" if document["unit"] == "words" else "tokens"
        root = token_tree.build(document["inputs"], unit) if tree else None
        if settings.output_format == "json":
            shown = {"tree": token_tree.as_record(root, unit)} if root is not None else {}
            sink.write_json(document | shown)
        elif root is not None:
            sink.write(token_tree.render(root, unit))
        else:
            sink.write(_page(document, columns(console, settings)))
    return 0


def _read(console: Console, settings: Settings, given: arguments.Sources) -> "Corpus":
    with ProgressView(console, settings.shows_progress) as view:
        view.phase(f"reading {formatting.plural(len(given.names), 'source')}")
        from hipcli.documents import read_sources

        return read_sources(given.names, settings.read_options(given.stdin), view.reading)


def _count(console: Console, settings: Settings, corpus: "Corpus") -> Counted:
    """Counts what `--count` names."""
    unit = settings.values["count"]
    if unit == "words":
        return Counted(unit, [counting.words(document.text) for document in corpus.documents])
    if unit != "tokens":
        console.detail(f"looking for the vocabulary {unit}")
        counter = counting.hosted_tokens(unit)
        return Counted(unit, [counter(document.text) for document in corpus.documents])
    return _count_for_model(settings, corpus)


def _count_for_model(settings: Settings, corpus: "Corpus") -> Counted:
    """Counts as `hip ask` does: the same context, with delimiters and page marks."""
    from hipcli.engine.models import resolve
    from hipcli.engine.tokenizer import load_tokenizer
    from hipcli.prompts import assemble

    name = settings.values["model"]
    try:
        folder = resolve(name, models_dir=settings.models_dir)
    except ModelError as error:
        error.hint = (
            f"{(error.hint or f'hip models pull {name}').rstrip('.')}; or use --count words"
        )
        raise
    context = assemble(corpus, load_tokenizer(folder.path), None)
    return Counted(
        "tokens",
        [document.text_tokens for document in context.documents],
        {"id": folder.name, "revision": folder.revision, "format": folder.format},
        kv_bytes(folder.path, len(context.ids)),
    )


def kv_bytes(folder: Path, num_tokens: int) -> int | None:
    """Bytes of keys, values and page summaries, two bytes a number; None if the model is silent.

    Args:
        folder: of the model.
        num_tokens: of the context.
    """
    file = folder / "config.json"
    if not file.is_file():
        return None
    config = json.loads(file.read_text("utf-8"))
    config = config.get("text_config", config)
    heads = config.get("num_attention_heads")
    layers = config.get("num_hidden_layers")
    if not heads or not layers:
        return None
    channels = config.get("head_dim") or config["hidden_size"] // heads
    channels *= config.get("num_key_value_heads") or heads
    pages = -(-num_tokens // PAGE_TOKENS)
    return int(layers * pages * (2 * PAGE_TOKENS + SUMMARY_ROWS) * channels * 2)


def _document(corpus: "Corpus", counted: Counted, cache_root: Path) -> dict[str, Any]:
    """The JSON document of `hip inspect`, schema 1."""
    counts = counted.counts
    in_tokens = counted.unit != "words"
    rows = input_rows(corpus, counts)
    if not in_tokens:
        rows = tuple({**row, "words": row["tokens"], "tokens": None} for row in rows)
    totals = {
        "files": len(corpus.documents),
        "pages": sum(document.num_pages or 0 for document in corpus.documents),
        "bytes": sum(document.num_bytes for document in corpus.documents),
        "tokens": sum(counts) if in_tokens else None,
    }
    if not in_tokens:
        totals["words"] = sum(counts)
    return {
        "schema_version": SCHEMA_VERSION,
        "model": counted.model,
        "unit": counted.unit,
        "inputs": list(rows),
        "totals": totals,
        "cache": {
            "bytes_needed": counted.cache_bytes,
            "fits": fits_disk(counted.cache_bytes, cache_root),
        },
        "warnings": [
            warning_row(warning.code, warning.message, warning.path) for warning in corpus.warnings
        ],
    }


def fits_disk(needed: int | None, cache_root: Path) -> bool | None:
    """Whether `needed` bytes are free where sessions are kept; None when that is unknown."""
    if needed is None:
        return None
    # The cache folder itself may not exist yet; its disk does.
    existing = next((path for path in (cache_root, *cache_root.parents) if path.exists()), None)
    return None if existing is None else needed < shutil.disk_usage(existing).free


def _page(document: Mapping[str, Any], width: int | None) -> str:
    """The document as a table and a few lines; `width` of the terminal, None if there is none."""
    unit = "words" if document["unit"] == "words" else "tokens"
    # Text has no pages to speak of.
    paged = width is None or bool(document["totals"]["pages"])
    rows = [_row(row, unit, paged) for row in document["inputs"]]
    header = ["TYPE", *(["PAGES"] if paged else []), unit.upper()]
    header += ["SIZE", "ENCODING", "STATUS", "PATH"]
    totals, cache = document["totals"], document["cache"]
    counted = [name for name in ("files", "pages", unit) if totals[name] or name != "pages"]
    parts = [formatting.plural(totals[name], name[:-1]) for name in counted]
    lines = [", ".join([*parts, formatting.size(totals["bytes"])])]
    if cache["bytes_needed"] is not None:
        verdict = "fits" if cache["fits"] else "does not fit"
        lines.append(
            f"a session needs {formatting.size(cache['bytes_needed'])}: {verdict} on the disk"
        )
    last = len(header) - 1
    table = formatting.table(header, rows, right=range(1, last - 2), width=width, key=last)
    return table + "\n" + "".join(line + "\n" for line in lines)


def _row(row: Mapping[str, Any], unit: str, paged: bool) -> list[str]:
    """An input as cells; what is long stands last, so that the columns before stay together."""
    pages = "-" if row["pages"] is None else formatting.count(row["pages"])
    return [
        row["type"],
        *([pages] if paged else []),
        "-" if row.get(unit) is None else formatting.count(row[unit]),
        formatting.size(row["bytes"]),
        row["encoding"] or "-",
        row["status"],
        f"{row['path']} ({row['reason']})" if row["reason"] else row["path"],
    ]
