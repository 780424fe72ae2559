"""The tokenizer of a model folder: the one object the rest of hip sees."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import tokenizers

from hipcli.engine.errors import ModelError
from hipcli.engine.tokenizer.chat import (
    PLAIN_BETWEEN,
    PLAIN_SUFFIX,
    SYSTEM_MARK,
    ChatTemplate,
    Joint,
    Rendered,
    Scaffold,
    TemplateFailure,
)
from hipcli.engine.tokenizer.components import Components
from hipcli.engine.tokenizer.convert import read_tokenizer_json
from hipcli.engine.tokenizer.files import TokenizerFiles, looks_like_control, read_files
from hipcli.engine.tokenizer.literal import LiteralEncoder
from hipcli.engine.tokenizer.stream import Stream
from hipcli.engine.tokenizer.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """A text as token ids.

    Args:
        ids: int32 [N].
        offsets: int32 [N, 2], the characters [start, end) of the text each token covers. Tokens
            that share a character (parts of its bytes) both cover it.
        replaced: characters the vocabulary cannot spell, encoded as U+FFFD.
    """

    ids: np.ndarray
    offsets: np.ndarray
    replaced: int = 0


class Tokenizer:
    """Literal encoding, the chat scaffold and decoding for one model. See `load_tokenizer`."""

    def __init__(self, backend: tokenizers.Tokenizer, files: TokenizerFiles) -> None:
        components = Components(backend)
        self._files = files
        self._added = backend.get_added_tokens_decoder()
        self._control = _control_tokens(backend, files)
        self._control_pattern = _alternatives(self._control)
        named = {self._control.get(text, -1) for text in files.named_tokens.values()}
        flagged = {index for index, token in self._added.items() if token.special}
        self._hidden = frozenset(flagged | named)
        self._dummy_prefix = components.dummy_prefix()
        self._leading = components.leading_tokens()
        self._vocabulary = Vocabulary(backend, components)
        self._literal = LiteralEncoder(backend, components, self._vocabulary, self._control)
        self._template: ChatTemplate | None = None
        if files.template is not None:
            self._template = ChatTemplate(files.template, files.named_tokens)

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id. A model's embedding may be larger, by padding."""
        return self._vocabulary.size

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of all control tokens; `encode` never returns one."""
        return frozenset(self._control.values())

    @property
    def bos_id(self) -> int | None:
        """The token a sequence begins with, None when the model wants none."""
        index = self._control.get(self._files.named_tokens.get("bos_token", ""))
        wanted = index in self._leading or self._files.add_bos is True
        return index if wanted else None

    def encode(self, text: str) -> Encoded:
        """Encode literally: no control token, no BOS, and `decode` gives the text back.

        Raises:
            ModelError: this model's tokenizer cannot do that.
        """
        prepared, replaced = self._literal.prepare(text)
        ids = self._literal.encode(prepared)
        return Encoded(ids, _offsets(prepared, self._vocabulary.lengths[ids]), replaced)

    def decode(self, ids: "np.ndarray | Sequence[int]") -> str:
        """Text of `ids`; control tokens are left out, incomplete characters become U+FFFD."""
        return self._vocabulary.join(ids, self._hidden).decode("utf-8", errors="replace")

    def stream(self) -> Stream:
        """A decoder for one answer."""
        return Stream(self._vocabulary, self._hidden, self._dummy_prefix != "never")

    def scaffold(self, system: str | None = None) -> Scaffold:
        """The ids around the user's text, for a conversation with this system text or none.

        The system text is encoded literally too. Without a usable chat template: the plain
        scaffold of `chat.py`, with `template=False`.
        """
        template = True
        try:
            if self._template is None:
                raise TemplateFailure("no template")
            rendered = self._template.cut(with_system=bool(system))
        except TemplateFailure:
            template = False
            rendered = Rendered(f"{SYSTEM_MARK}\n\n" if system else "", PLAIN_SUFFIX)
        before, mark, after_system = rendered.before.partition(SYSTEM_MARK)
        joint = self._joint(before, at_start=True)
        prefix = list(joint.ids)
        if mark:
            prefix += self.encode(joint.lead + (system or "")).ids.tolist()
            joint = self._joint(after_system)
            prefix += joint.ids
        return Scaffold(
            tuple(self._with_one_bos(prefix)),
            tuple(self._markup(rendered.after)),
            template,
            joint.lead,
        )

    def turns(self, count: int) -> tuple[Joint, ...]:
        """What stands between the texts of `count` answered questions and one more.

        Returns:
            2 * count + 1 parts: behind the first question, behind its answer, ..., behind the last
            question, where the model begins to answer. Without a usable template those of the
            plain scaffold.
        """
        try:
            if self._template is None:
                raise TemplateFailure("no template")
            parts = self._template.around_turns(count)[1:]
        except TemplateFailure:
            parts = (PLAIN_SUFFIX + " ", PLAIN_BETWEEN) * count + (PLAIN_SUFFIX,)
        # Behind the last one comes no text of ours.
        last = Joint(tuple(self._markup(parts[-1])))
        return (*map(self._joint, parts[:-1]), last)

    @cached_property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end an answer: the tokenizer's EOS, the generation configuration's, and the
        control token the template puts after a user's or an assistant's text."""
        stops = set(self._files.eos_ids)
        eos = self._control.get(self._files.named_tokens.get("eos_token", ""))
        if eos is not None:
            stops.add(eos)
        if self._template is not None:
            try:
                after_user = self._template.cut(with_system=False).after
            except TemplateFailure:
                after_user = ""
            for text in (after_user, self._template.after_answer()):
                match = self._control_pattern.match(text.lstrip())
                if match:
                    stops.add(self._control[match[0]])
        return frozenset(stops)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over what decides token ids: `tokenizer.json`, the template, named tokens."""
        record = [
            "hip-tokenizer-1",
            self._files.content_sha256,
            self._files.template,
            sorted(self._files.named_tokens.items()),
            self._files.add_bos,
        ]
        return hashlib.sha256(json.dumps(record).encode()).hexdigest()

    def _with_one_bos(self, ids: list[int]) -> list[int]:
        bos = self.bos_id
        if bos is None:
            return ids
        while len(ids) > 1 and ids[:2] == [bos, bos]:
            ids = ids[1:]
        return ids if ids[:1] == [bos] else [bos, *ids]

    def _joint(self, text: str, at_start: bool = False) -> Joint:
        """A template's own text before a text that is encoded by itself.

        A blank at its end goes with what follows: "[INST] The" is a token for " The".
        """
        parts = self._control_pattern.split(text)
        tail = parts[-1]
        lead = " " if tail.endswith(" ") and not tail.endswith("  ") else ""
        ids = tuple(self._markup(text[: len(text) - len(lead)], at_start))
        if tail == lead and len(parts) > 1:
            # The text itself begins a stretch behind a control token.
            control = self._added.get(self._control[parts[-2]])
            if control is not None and control.rstrip:
                lead = ""
            if self._wants_space(after_control=True, at_start=False):
                lead = " " + lead
        return Joint(ids, lead)

    def _markup(self, text: str, at_start: bool = False) -> list[int]:
        """Ids of a template's own text, in which control tokens are control tokens."""
        ids: list[int] = []
        parts = self._control_pattern.split(text)
        for rank, part in enumerate(parts):
            if rank % 2:
                ids.append(self._control[part])
                continue
            before = self._added.get(ids[-1]) if rank and ids else None
            following = self._control[parts[rank + 1]] if rank + 1 < len(parts) else -1
            after = self._added.get(following)
            if before is not None and before.rstrip:
                part = part.lstrip()
            if after is not None and after.lstrip:
                part = part.rstrip()
            if part and self._wants_space(rank > 0, at_start):
                part = " " + part
            ids.extend(self._literal.encode(self._literal.prepare(part)[0]).tolist())
        return ids

    def _wants_space(self, after_control: bool, at_start: bool) -> bool:
        """Whether the tokenizer would put its dummy space before this stretch of text."""
        if after_control:
            return self._dummy_prefix == "always"
        return at_start and self._dummy_prefix != "never"


def load_tokenizer(folder: Path, *, cache: Path | None = None) -> Tokenizer:
    """Load the tokenizer of a model folder.

    Args:
        folder: holds `tokenizer.json`, or the older vocabulary files, which are then converted.
        cache: where a converted `tokenizer.json` is kept; without it a conversion is not saved.

    Raises:
        ModelError: no tokenizer there, a damaged one, or one hip cannot use.
    """
    content = read_tokenizer_json(folder, cache)
    try:
        backend = tokenizers.Tokenizer.from_buffer(content)
    except Exception as error:
        # The library raises plain Exception.
        raise ModelError(
            f"Cannot read the tokenizer.json of {folder}: {error}",
            hint="Pull the model again, or restore the file.",
        ) from error
    return Tokenizer(backend, read_files(folder, content))


def _control_tokens(backend: tokenizers.Tokenizer, files: TokenizerFiles) -> dict[str, int]:
    """Text -> id of every token that means something to the model rather than standing for text."""
    control = {}
    for index, token in backend.get_added_tokens_decoder().items():
        # A token that swallows the white space beside it cannot stand in literal text either.
        swallows = token.lstrip or token.rstrip
        if token.special or swallows or looks_like_control(token.content, files):
            control[token.content] = index
    for text in files.named_tokens.values():
        named = backend.token_to_id(text)
        if named is not None:
            control[text] = named
    return control


def _alternatives(control: dict[str, int]) -> re.Pattern[str]:
    """Matches any control token, the longest first, in one group."""
    spelled = sorted(control, key=len, reverse=True)
    # "(?!)" matches nowhere.
    return re.compile("(" + "|".join([*map(re.escape, spelled), "(?!)"]) + ")")


def _offsets(text: str, lengths: np.ndarray) -> np.ndarray:
    """Character offsets int32 [N, 2] of tokens that are `lengths` bytes long, in order."""
    ends = np.cumsum(lengths)
    starts = ends - lengths
    if len(ends) and len(text) != int(ends[-1]):
        data = np.frombuffer(text.encode(), dtype=np.uint8)
        # characters[b] = number of characters begun by byte b included
        characters = np.cumsum((data & 0xC0) != 0x80, dtype=np.int32)
        starts, ends = characters[starts] - 1, characters[ends - 1]
    return np.stack([starts, ends], axis=1).astype(np.int32)
