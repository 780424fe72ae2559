"""A finished summary as text: Markdown that reads well as it is."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hipcli.documents import PAGED_KINDS
from hipcli.prompts import Context
from hipcli.summary.repository import EntryPoint
from hipcli.summary.sections import Section, label, place

Per = Literal["file", "chapter", "none"]


@dataclass(frozen=True, slots=True)
class Part:
    """A section and its summary."""

    section: Section
    text: str
    finish_reason: str
    evidence: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Summary:
    """All that was written.

    Args:
        text: the synthesis.
        parts: of every section, in order.
        files: of every document, by its index; empty unless asked for.
        entry_points: how a repository is run.
    """

    text: str
    parts: tuple[Part, ...]
    files: dict[int, str]
    entry_points: tuple[EntryPoint, ...] = ()


def as_text(summary: Summary, context: Context, per: Per) -> str:
    """The summary for people; with `none` the synthesis alone."""
    blocks = [summary.text]
    # The summary of a single part is that part's.
    if per != "none" and len(summary.parts) > 1:
        blocks += _documents(summary, context, per)
    if per != "none" and summary.entry_points:
        rows = [f"- {entry.command}  ({entry.path})" for entry in summary.entry_points]
        blocks.append("\n".join(["## How it is run", "", *rows]))
    return "\n\n".join(block for block in blocks if block)


def part_row(part: Part, context: Context) -> dict[str, Any]:
    """A part as JSON."""
    section = part.section
    is_paged = context.documents[section.document].kind in PAGED_KINDS
    ends = ("page_start", "page_end") if is_paged else ("line_start", "line_end")
    return {
        "path": context.documents[section.document].name,
        "title": label(context, section),
        "titles": list(section.titles),
        ends[0]: section.first,
        ends[1]: section.last,
        "tokens": section.end_token - section.start_token,
        "summary": part.text,
        "finish_reason": part.finish_reason,
        "evidence": list(part.evidence),
    }


def _documents(summary: Summary, context: Context, per: Per) -> Iterator[str]:
    several = len({part.section.document for part in summary.parts}) > 1
    for index, document in enumerate(context.documents):
        parts = [part for part in summary.parts if part.section.document == index]
        if not parts:
            continue
        lines = [f"## {document.name}", ""] if several or per == "file" else ["## Parts", ""]
        if per == "file":
            # With one document its summary is the synthesis.
            said = len(summary.files) == 1
            body = [*([] if said else [summary.files[index], ""]), *_titles(parts, context)]
            lines += body if body[-1:] != [""] else body[:-1]
        elif len(parts) == 1 and not parts[0].section.titles:
            lines.append(parts[0].text)
        else:
            lines += [_line(part, context) for part in parts]
        yield "\n".join(lines)


def _titles(parts: Sequence[Part], context: Context) -> list[str]:
    """The names of a file's sections, where it has more than one."""
    if len(parts) < 2:
        return []
    return ["Parts: " + "; ".join(label(context, part.section) for part in parts)]


def _line(part: Part, context: Context) -> str:
    name, where = label(context, part.section), place(context, part.section)
    inner = part.section.titles[1:-1]
    also = f" (with {'; '.join(inner)})" if inner else ""
    return f"- **{name}**{also}{'' if name == where else f' ({where})'}: {part.text}"
