"""What `hip ask` prints: the answer as text, one JSON document, or events as JSON lines."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hipcli.citing.grounds import Citation, Finding, Grounds, citation_row
from hipcli.documents import unit_of
from hipcli.engine.errors import HipError
from hipcli.engine.events import Progress, Result
from hipcli.engine.resident import peak_rss_bytes
from hipcli.runs.material import Material
from hipcli.terminal.output import SCHEMA_VERSION, AnswerWriter, Sink, error_row

if TYPE_CHECKING:
    from hipcli.prompts import Passage

_TIMINGS = ("load_s", "prefill_s", "first_token_s", "decode_s")
_MEMORY = (
    "kv_bytes",
    "kv_device_bytes",
    "kv_host_bytes",
    "kv_disk_bytes",
    "kv_resident_bytes",
    "peak_rss_bytes",
    "peak_device_bytes",
)
_PROGRESS = (
    "phase",
    "done_tokens",
    "cached_tokens",
    "total_tokens",
    "tokens_per_s",
    "eta_s",
    "kv_device_bytes",
    "kv_host_bytes",
    "kv_disk_bytes",
)


class Report:
    """Writes an answer to `sink` as it comes, in one of three formats.

    Args:
        sink: where to.
        output_format: text, json or jsonl.
        cite: True to list the passages after a text answer.
        labels: fields that every event carries.
    """

    def __init__(
        self, sink: Sink, output_format: str, cite: bool, labels: Mapping[str, Any] | None = None
    ) -> None:
        self._sink = sink
        self._format = output_format
        self._cite = cite
        self._labels = labels or {}
        self._answer = AnswerWriter(sink)
        self._has_text = False

    def start(self, command: str, version: str) -> None:
        self._event("start", schema_version=SCHEMA_VERSION, command=command, version=version)

    def progress(self, event: Progress) -> None:
        self._event("progress", **{name: getattr(event, name) for name in _PROGRESS})

    def warning(self, row: Mapping[str, str]) -> None:
        self._event("warning", **row)

    def token(self, text: str) -> None:
        if self._format == "text" and text:
            self._has_text = True
            self._answer.write(text)
        self._event("token", text=text)

    def error(self, failure: HipError) -> None:
        """One of several answers failed; the others still come."""
        self._event("error", schema_version=SCHEMA_VERSION, error=error_row(failure))

    def abandon(self) -> None:
        """Ends the line of an answer that will not be finished."""
        if self._has_text:
            self._has_text = False
            self._answer.finish()

    def result(self, document: dict[str, Any], citations: Sequence[Citation]) -> None:
        """Completes the output; nothing may follow."""
        if self._format == "json":
            self._sink.write_json(document)
        self._event("result", **document)
        if self._format == "text":
            if not self._has_text:
                self._answer.write(document["answer"])
            self._has_text = False
            self._answer.finish()
            notes = footnotes(citations) if self._cite else []
            if notes:
                self._sink.write("\n" + "".join(notes))

    def _event(self, name: str, **fields: Any) -> None:
        if self._format == "jsonl":
            self._sink.write_json({"event": name, **self._labels, **fields})


def footnotes(citations: Sequence[Citation]) -> list[str]:
    """Two lines for each verified citation: its number and place, and what stands there."""
    verified = [(citation, citation.passage) for citation in citations if citation.passage]
    return [
        f"[{number}] {place_in_words(passage)}\n    {citation.line_start}: {citation.quote}\n"
        for number, (citation, passage) in enumerate(verified, start=1)
    ]


def place_in_words(passage: "Passage") -> str:
    """`notes.txt, line 7` or `book.pdf, page 12 (xii), lines 3-9`."""
    lines = f"line {passage.line_start}"
    if passage.line_end != passage.line_start:
        lines = f"lines {passage.line_start}-{passage.line_end}"
    if passage.page is None:
        return f"{passage.name}, {lines}"
    # The label of a notebook's cell is "code" or "markdown", which tells nobody where it is.
    label = None if passage.kind == "notebook" else passage.page_label
    printed = f" ({label})" if label and label != str(passage.page) else ""
    return f"{passage.name}, {unit_of(passage.kind)} {passage.page}{printed}, {lines}"


def ask_document(
    result: Result,
    material: Material,
    grounds: Grounds,
    description: Mapping[str, Any],
    timings: Mapping[str, float],
    warnings: Sequence[Mapping[str, str]],
) -> dict[str, Any]:
    """The JSON document of `hip ask`, schema 1.

    Args:
        result: the engine's last event.
        material: what was asked about.
        grounds: where the answer comes from.
        description: the engine's `model` and `method`.
        timings: seconds measured outside the engine: ingest_s, tokenize_s, total_s.
        warnings: rows of code, message, path.
    """
    memory = dict.fromkeys(_MEMORY, 0) | {"peak_rss_bytes": peak_rss_bytes()} | result.memory
    measured = dict.fromkeys(_TIMINGS, 0.0) | result.timings | dict(timings)
    return {
        "schema_version": SCHEMA_VERSION,
        "answer": result.answer,
        "finish_reason": result.finish_reason,
        "model": dict(description["model"]),
        "method": dict(description["method"]),
        "usage": {
            "document_tokens": material.context.document_tokens,
            "question_tokens": result.question_tokens,
            "cached_tokens": result.cached_tokens,
            "prefilled_tokens": result.prefilled_tokens,
            "generated_tokens": result.generated_tokens,
            "drafted_tokens": result.drafted_tokens,
            "accepted_tokens": result.accepted_tokens,
            "truncated": material.truncated_tokens,
        },
        "timings": {name: round(seconds, 4) for name, seconds in measured.items()},
        "memory": memory,
        "citations": [citation_row(citation) for citation in grounds.citations],
        "evidence": [evidence_row(finding) for finding in grounds.findings],
        "inputs": list(material.inputs),
        "session": asdict(result.session),
        "warnings": list(warnings),
    }


def evidence_row(finding: Finding) -> dict[str, Any]:
    """A row of `evidence[]`."""
    passage = finding.passage
    return {
        "path": passage.name,
        "page": passage.page,
        "line_start": passage.line_start,
        "line_end": passage.line_end,
        "score": finding.score,
        "text": passage.text,
    }


def warning_row(code: str, message: str, path: str = "") -> dict[str, str]:
    """A row of `warnings[]`."""
    return {"code": code, "message": message, "path": path}
