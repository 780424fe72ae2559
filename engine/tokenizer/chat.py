"""The chat scaffold: what a model's template puts around the documents and the question.

The template is rendered once around a place-holder and cut there, so no text of a document or a
question ever passes through it. A model without a template gets the plain scaffold

    {BOS}{system}\\n\\n{documents and question}\\n\\nAnswer:
"""

import datetime
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

# Private-use characters: no template writes, trims or changes their case.
_USER = "\ue0a0user\ue0a1"
_SYSTEM = "\ue0a2system\ue0a3"
_ANSWER = "\ue0a4answer\ue0a5"
# Templates that demand a date get this one: the same context every day, so saved sessions serve.
_DATE = datetime.datetime(2024, 7, 26)

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Scaffold:
    """Token ids around the user's text.

    Args:
        prefix_ids: from the beginning to the user's text; starts with the only BOS, if any.
        suffix_ids: from the user's text to where the model begins its answer.
        template: False when the model has no usable chat template and the plain scaffold is used.
        lead: the blank between the prefix and the user's text, to be encoded with the text: the
            tokenizer joins it to the first word.
    """

    prefix_ids: tuple[int, ...]
    suffix_ids: tuple[int, ...]
    template: bool
    lead: str = ""


@dataclass(frozen=True, slots=True)
class Joint:
    """What a template puts between two texts of a conversation.

    Args:
        ids: behind the one.
        lead: blanks before the other, to be encoded with it.
    """

    ids: tuple[int, ...]
    lead: str = ""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A template's text, cut. `before` still holds `SYSTEM_MARK` when there is a system text."""

    before: str
    after: str


SYSTEM_MARK = _SYSTEM
PLAIN_SUFFIX = "\n\nAnswer:"
PLAIN_BETWEEN = "\n\n"


class TemplateFailure(Exception):
    """The template cannot be rendered, or does not show the user's text exactly once."""


class ChatTemplate:
    """A model's Jinja template, run in a sandbox.

    Args:
        source: the template.
        named_tokens: `bos_token`, `eos_token`, ... as templates refer to them.
    """

    def __init__(self, source: str, named_tokens: dict[str, str]) -> None:
        self._source = source
        self._named_tokens = named_tokens
        self._compiled: jinja2.Template | None = None

    def cut(self, with_system: bool) -> Rendered:
        """Render around the user's text. A template that rejects or drops the system role gets
        the system text at the head of the user's turn.

        Raises:
            TemplateFailure: see there.
        """
        user = {"role": "user", "content": _USER}
        if not with_system:
            return _halves(self._render([user]))
        try:
            text = self._render([{"role": "system", "content": _SYSTEM}, user])
            if text.count(_SYSTEM) == 1 and text.find(_SYSTEM) < text.find(_USER):
                return _halves(text)
        except TemplateFailure:
            pass
        folded = {"role": "user", "content": f"{_SYSTEM}\n\n{_USER}"}
        text = self._render([folded])
        if text.count(_SYSTEM) != 1:
            raise TemplateFailure("the template does not show the system text once")
        return _halves(text)

    def after_answer(self) -> str:
        """What the template writes after the assistant's text; empty when it refuses."""
        messages = [
            {"role": "user", "content": _USER},
            {"role": "assistant", "content": _ANSWER},
        ]
        try:
            return self._render(messages, generation=False).partition(_ANSWER)[2]
        except TemplateFailure:
            return ""

    def around_turns(self, count: int) -> tuple[str, ...]:
        """What the template writes around the texts of `count` answered questions and one more.

        Returns:
            2 * count + 2 parts: before the first question, behind it, behind its answer, ...,
            behind the last question.

        Raises:
            TemplateFailure: it does not show every text once, in order.
        """
        marks = [f"\ue0a6{place}\ue0a7" for place in range(2 * count + 1)]
        roles = ("user", "assistant")
        text = self._render(
            [{"role": roles[place % 2], "content": mark} for place, mark in enumerate(marks)]
        )
        parts = []
        for mark in marks:
            before, _, text = text.partition(mark)
            parts.append(before)
        if any(mark in part for part in (*parts, text) for mark in marks) or not text:
            raise TemplateFailure("the template does not show a conversation's texts once each")
        return (*parts, text)

    def _render(self, messages: Sequence[Message], generation: bool = True) -> str:
        try:
            if self._compiled is None:
                self._compiled = _environment(self._source).from_string(self._source)
            return self._compiled.render(
                messages=list(messages),
                add_generation_prompt=generation,
                tools=None,
                documents=None,
                # Models that can think before they answer are asked not to: an answer has a
                # few hundred tokens.
                enable_thinking=False,
                **self._named_tokens,
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise TemplateFailure(str(error)) from error


def _halves(text: str) -> Rendered:
    before, mark, after = text.partition(_USER)
    if not mark or _USER in after:
        raise TemplateFailure("the template does not show the user's text once")
    return Rendered(before, after)


def _environment(source: str) -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    # A template that checks for the clock has a fixed date of its own; the others need one.
    if "strftime_now is defined" not in source:
        environment.globals["strftime_now"] = _DATE.strftime
    return environment


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(value: Any, indent: int | None = None, **_: Any) -> str:
    # Jinja's own filter escapes characters for HTML.
    return json.dumps(value, ensure_ascii=False, indent=indent)


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` marks the assistant's text for training; here its
    content is rendered as it stands."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node | list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
