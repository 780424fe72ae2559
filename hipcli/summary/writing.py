"""One run of `hip summarize`: read once, ask for every section, put the answers together.

All questions go to the same session. Each is about one section: only its pages are voted for and
reread, so the last section counts as much as the first. What is finished is kept with the session.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from hipcli.citing.grounds import Grounds
from hipcli.config.arguments import Sources
from hipcli.config.settings import Settings
from hipcli.engine.config import CacheConfig, GenerationConfig
from hipcli.engine.events import Event, Phase, Progress, Result, Token
from hipcli.exit_codes import ExitCode
from hipcli.runs.asking import Run
from hipcli.runs.following import shown
from hipcli.runs.inquiry import Inquiry
from hipcli.summary import wording
from hipcli.summary.coverage import coverage
from hipcli.summary.kept import KeptParts, digest
from hipcli.summary.layout import Part, Per, Summary, as_text, part_row
from hipcli.summary.notes import NOTES_TOKENS, grouped, notes_context
from hipcli.summary.repository import entry_points
from hipcli.summary.sections import Section, describe, find_sections, label
from hipcli.terminal.console import Console
from hipcli.terminal.formatting import plural
from hipcli.terminal.output import Sink
from hipcli.terminal.progress import ProgressView
from hipcli.terminal.report import evidence_row

# The finish_reason of a part that the model wrote nothing for; it is not covered.
NOT_WRITTEN = "empty"
_OPENING_TOKENS = 24


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to summarize, and how.

    Args:
        sources: what to read; None to take up the session called `session`.
        session: an id, the start of one, a name; empty for the latest.
        per: file, chapter or none; empty chooses: chapters of one document, files of several.
        words: of the whole summary, about.
        focus: what to pay attention to; may be empty.
    """

    sources: Sources | None
    session: str
    per: Per | None
    words: int
    focus: str


class SummarizeRun(Run):
    """One summary.

    Args:
        wanted: of what.
    """

    _inquiry: Inquiry
    _view: ProgressView
    _kept: KeptParts
    _length: wording.Length

    def __init__(self, console: Console, settings: Settings, wanted: Wanted, sink: Sink) -> None:
        super().__init__(console, settings, sink, "summarize")
        self._wanted = wanted
        # Of all answers together, by the names that `usage` has for them.
        self._usage = dict.fromkeys(("generated_tokens", "drafted_tokens", "accepted_tokens"), 0)
        self._parts_kept = 0

    def _work(self, view: ProgressView) -> int:
        with Inquiry(self._console, self._settings, self._warn, many=True) as inquiry:
            self._inquiry, self._view = inquiry, view
            if self._wanted.sources is not None:
                inquiry.open_documents(self._wanted.sources, view)
            else:
                inquiry.open_session(self._wanted.session or None, view)
            opened = self._read()
            context = inquiry.material.context
            sections = find_sections(context)
            self._console.detail(describe(sections))
            self._length = wording.lengths(self._wanted.words, len(sections))
            parts = self._parts(sections)
            points = tuple(entry_points(context))
            per = self._per()
            files = self._files(parts) if per == "file" else {}
            text = self._synthesis(parts, files, [f"{p.command} ({p.path})" for p in points])
            view.stop()
            self._finish(opened, Summary(text, parts, files, points), per)
        return ExitCode.OK

    def _kept_in_words(self) -> str:
        if self._parts_kept and not self._settings.values["no_cache"]:
            return f"{plural(self._parts_kept, 'part')} kept; the same command goes on"
        return super()._kept_in_words()

    def _per(self) -> Per:
        documents = self._inquiry.material.context.documents
        return self._wanted.per or ("file" if len(documents) > 1 else "chapter")

    def _read(self) -> Result:
        """Brings the context into its session; what the question's one token says is dropped."""
        result = self._ask("What is this about?", GenerationConfig(max_new_tokens=1))
        fresh = self._settings.values["refresh"]
        cache = self._inquiry.cache_directory
        self._kept = KeptParts.of_session(cache, result.session.id, fresh)
        return result

    def _parts(self, sections: Sequence[Section]) -> tuple[Part, ...]:
        parts, done = [], 0
        total = sum(section.end_token - section.start_token for section in sections)
        for number, section in enumerate(sections, start=1):
            name = label(self._inquiry.material.context, section)
            self._view.phase(f"part {number} of {len(sections)}: {name}")
            parts.append(self._part(section, name))
            done += section.end_token - section.start_token
            self._report.progress(Progress("summarize", done, 0, total, 0.0, None))
        return tuple(parts)

    def _part(self, section: Section, name: str) -> Part:
        """The summary of one section: kept from before, or asked for now."""
        document = self._inquiry.material.context.documents[section.document]
        words = self._length.part_words
        question = wording.of_section(name, document.name, document.kind, words, self._wanted.focus)
        generation = self._generation(words)
        focus = (section.start_token, section.end_token)
        answer = self._inquiry.settings.values["answer"]
        key = digest(question, {"focus": focus, **self._identity(generation, answer)})
        kept = self._kept.get(key)
        if kept is None:
            result = self._ask(question, generation, focus=focus)
            ended = result.finish_reason == "stop"
            text = wording.whole_sentences(result.answer, ended, question)
            kept = {
                "text": text or self._opening_words(section),
                "finish_reason": result.finish_reason if text else NOT_WRITTEN,
                "evidence": [evidence_row(found) for found in self._inquiry.findings(result)],
            }
            self._kept.put(key, kept)
        self._parts_kept += 1
        evidence = tuple(kept.get("evidence", ()))
        return Part(section, kept["text"], str(kept.get("finish_reason", "")), evidence)

    def _opening_words(self, section: Section) -> str:
        """What stands for a section that the model had nothing to say about."""
        context = self._inquiry.material.context
        end = min(section.end_token, section.start_token + _OPENING_TOKENS)
        passages = context.locate(section.start_token, end)
        return f"It begins: {' '.join(passages[0].text.split())} …" if passages else "Empty."

    def _files(self, parts: Sequence[Part]) -> dict[int, str]:
        """A summary of each document, from those of its sections."""
        context, files = self._inquiry.material.context, {}
        for index in dict.fromkeys(part.section.document for part in parts):
            own = [part for part in parts if part.section.document == index]
            notes = [f"{label(context, part.section)}: {part.text}" for part in own]
            name = context.documents[index].name
            only = own[0].text if len(own) == 1 else None
            files[index] = only or self._combined(name, notes, self._length.part_words)
        return files

    def _synthesis(
        self, parts: Sequence[Part], files: dict[int, str], commands: Sequence[str]
    ) -> str:
        context = self._inquiry.material.context
        if len(parts) == 1:
            return parts[0].text
        names = [document.name for document in context.documents]
        if len(files) == 1:
            return next(iter(files.values()))
        if files:
            notes = [f"{names[index]}: {text}" for index, text in files.items()]
        else:
            notes = [f"{label(context, part.section)}: {part.text}" for part in parts]
        if commands:
            notes.append("It is run with: " + "; ".join(commands))
        what = names[0] if len(names) == 1 else f"{len(names)} documents"
        text = self._combined(what, notes, self._length.synthesis_words, is_last=True)
        if wording.says_something(text):
            return text
        parts_or_names = [label(context, part.section) for part in parts]
        return wording.in_place_of_synthesis(names if files else parts_or_names, commands)

    def _combined(self, what: str, notes: Sequence[str], words: int, is_last: bool = False) -> str:
        """One text from `notes`, in as many rounds as it takes for them to fit a short prompt.

        Args:
            is_last: its tokens are the answer, and are told as events.
        """
        tokenizer = self._inquiry.engine.tokenizer
        groups = grouped(notes, tokenizer)
        while len(groups) > 1:
            self._view.phase(f"putting {len(notes)} notes together")
            notes = [self._combined(what, group, words) for group in groups]
            smaller = grouped(notes, tokenizer)
            if len(smaller) >= len(groups):
                # Notes that are as long as what they are about: the first ones must do.
                smaller = smaller[:1]
            groups = smaller
        self._view.phase("putting the parts together")
        system = self._inquiry.settings.values["system"]
        question = wording.of_notes(what, words, self._wanted.focus)
        generation = self._generation(words)
        key = digest(question, {"notes": groups[0], **self._identity(generation, "auto")})
        kept = self._kept.get(key)
        if kept is not None:
            return str(kept["text"])
        context = notes_context(groups[0], tokenizer, system)
        result = self._ask(
            question,
            generation,
            told=is_last,
            context_ids=context.ids,
            prefix_tokens=context.documents[0].start_token,
            cache=CacheConfig(),
            answer="auto",
            extra={},
        )
        text = wording.whole_sentences(result.answer, result.finish_reason == "stop", question)
        self._kept.put(key, {"text": text, "finish_reason": result.finish_reason})
        return text

    @staticmethod
    def _identity(generation: GenerationConfig, answer: str) -> dict[str, Any]:
        """What of the settings shapes an answer, besides what shapes the session."""
        return {"answer": answer, **asdict(generation)}

    def _generation(self, words: int) -> GenerationConfig:
        tokens = min(wording.max_tokens(words), NOTES_TOKENS)
        return replace(self._settings.generation_config(), max_new_tokens=tokens)

    def _ask(
        self, question: str, generation: GenerationConfig, told: bool = False, **fields: Any
    ) -> Result:
        """One answer; raises KeyboardInterrupt when it was interrupted."""

        def show(event: Event) -> None:
            if isinstance(event, Phase) and event.name != "prefill":
                # Which part it is says more than that it is answered.
                return
            if not isinstance(event, Token):
                self._show_work(event, self._view)
            elif told and self._settings.output_format == "jsonl":
                self._report.token(event.text)

        result = shown(self._inquiry.ask(question, generation, **fields), show)
        if result.finish_reason == "interrupted":
            raise KeyboardInterrupt
        for name in self._usage:
            self._usage[name] += getattr(result, name)
        return result

    def _finish(self, opened: Result, summary: Summary, per: Per) -> None:
        inquiry, material = self._inquiry, self._inquiry.material
        fit = inquiry.settings.values["fit"]
        done = [part.section for part in summary.parts if part.finish_reason != NOT_WRITTEN]
        document = inquiry.document(opened, Grounds((), ()), self._warnings, self._started_s)
        document["answer"] = as_text(summary, material.context, per)
        document["finish_reason"] = "stop"
        document["usage"] |= self._usage
        document |= {
            "coverage": coverage(material, done, fit),
            "summary": summary.text,
            "parts": [part_row(part, material.context) for part in summary.parts],
            "files": [
                {"path": material.context.documents[index].name, "summary": text}
                for index, text in summary.files.items()
            ],
            "entry_points": [
                {"command": point.command, "path": point.path} for point in summary.entry_points
            ],
        }
        self._report.result(document, [])
        share = document["coverage"]["fraction"]
        self._console.note(f"{describe(done)} summarized, {share:.0%} of the text")
