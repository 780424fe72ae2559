"""Making a context fit: what of the documents is left out when the user allowed it."""

from dataclasses import replace
from typing import Literal

import numpy as np

from hipcli.engine.errors import DoesNotFitError
from hipcli.prompts.assemble import PromptTokenizer
from hipcli.prompts.context import Context, DocumentSpan, TextSpan

# What of the documents is kept: their beginning, their end, or both without the middle.
Keep = Literal["head", "tail", "middle"]
CUT_MARK = "\n[... left out ...]\n"


def fit(
    context: Context, max_tokens: int, keep: Keep, tokenizer: PromptTokenizer
) -> tuple[Context, int]:
    """A context of at most `max_tokens`, and how many tokens of text it lacks.

    Delimiters and page marks stay around whatever text stays; the place of the cut is marked.
    Locations remain those of the whole documents.

    Args:
        keep: "head" drops the end of the documents, "tail" their beginning, "middle" what is
            between the two (the middle is what goes, as with a letter too long for its frame).

    Raises:
        DoesNotFitError: there is not even room for one token of text.
    """
    if len(context.ids) <= max_tokens:
        return context, 0
    plan = _Plan(context, keep, tokenizer.encode(CUT_MARK).ids)
    low, high = 0, context.document_tokens
    while low < high:
        middle = (low + high + 1) // 2
        if plan.num_tokens(middle) <= max_tokens:
            low = middle
        else:
            high = middle - 1
    if low == 0:
        raise DoesNotFitError(
            f"{max_tokens:,} tokens hold the prompt's frame and no text at all",
            "Raise --context-limit.",
        )
    return plan.build(low), context.document_tokens - low


class _Plan:
    """Which tokens stay for each number of text tokens kept."""

    def __init__(self, context: Context, keep: Keep, mark: np.ndarray) -> None:
        self.context = context
        self.keep = keep
        self.mark = mark
        is_text = np.zeros(len(context.ids), dtype=bool)
        for span in context.spans:
            is_text[span.start_token : span.end_token] = True
        self.text = np.flatnonzero(is_text)

    def num_tokens(self, num_text: int) -> int:
        return int(self._mask(num_text).sum()) + len(self.mark)

    def build(self, num_text: int) -> Context:
        """The context with `num_text` tokens of text."""
        mask = self._mask(num_text)
        cut = self._cut(num_text)
        # New place of each old token; tokens from the cut on stand behind the mark.
        places = np.cumsum(mask) - mask
        places[cut:] += len(self.mark)
        places = np.append(places, int(mask.sum()) + len(self.mark))
        context = self.context
        at = int(mask[:cut].sum())

        def keep_and_mark(values: np.ndarray, inserted: np.ndarray) -> np.ndarray:
            kept = values[mask]
            return np.concatenate([kept[:at], inserted, kept[at:]]).astype(np.int32)

        none = np.zeros(len(self.mark), dtype=np.int32)
        spans, documents = self._spans(mask, cut, places), self._documents(mask, places)
        return Context(
            ids=keep_and_mark(context.ids, self.mark),
            documents=documents,
            spans=spans,
            first_lines=keep_and_mark(context.first_lines, none),
            last_lines=keep_and_mark(context.last_lines, none),
            decode=context.decode,
        )

    def _kept_text(self, num_text: int) -> np.ndarray:
        if self.keep == "head":
            return self.text[:num_text]
        if self.keep == "tail":
            return self.text[len(self.text) - num_text :]
        head = (num_text + 1) // 2
        return np.concatenate([self.text[:head], self.text[len(self.text) - (num_text - head) :]])

    def _cut(self, num_text: int) -> int:
        """The first token behind what is left out, or the first one left out at the end."""
        if self.keep == "head":
            return int(self.text[num_text - 1]) + 1
        if self.keep == "tail":
            return int(self.text[len(self.text) - num_text])
        return int(self.text[(num_text + 1) // 2 - 1]) + 1

    def _mask(self, num_text: int) -> np.ndarray:
        """bool [N]: tokens that stay when `num_text` tokens of text do."""
        context = self.context
        mask = np.zeros(len(context.ids), dtype=bool)
        mask[self._kept_text(num_text)] = True
        kept = set()
        for span in context.spans:
            if mask[span.start_token : span.end_token].any():
                mask[span.mark_token : span.start_token] = True
                kept.add(span.document)
        first = {span.document: span.mark_token for span in reversed(context.spans)}
        last = {span.document: span.end_token for span in context.spans}
        for index in kept:
            document = context.documents[index]
            mask[document.start_token : first[index]] = True
            mask[last[index] : document.end_token] = True
        mask[: context.documents[0].start_token] = True
        return mask

    def _spans(self, mask: np.ndarray, cut: int, places: np.ndarray) -> tuple[TextSpan, ...]:
        spans = []
        for span in self.context.spans:
            # The cut can go through a span; each side is a span of its own.
            for start, end in (
                (span.start_token, min(cut, span.end_token)),
                (max(cut, span.start_token), span.end_token),
            ):
                kept = np.flatnonzero(mask[start:end]) if start < end else np.array([], int)
                if not len(kept):
                    continue
                first = int(places[start + kept[0]])
                own_mark = mask[span.mark_token] and start == span.start_token
                spans.append(
                    TextSpan(
                        document=span.document,
                        page=span.page,
                        page_label=span.page_label,
                        mark_token=int(places[span.mark_token]) if own_mark else first,
                        start_token=first,
                        end_token=first + len(kept),
                    )
                )
        return tuple(spans)

    def _documents(self, mask: np.ndarray, places: np.ndarray) -> tuple[DocumentSpan, ...]:
        """All documents; one that is left out as a whole has an empty range."""
        is_text = np.zeros(len(mask), dtype=bool)
        is_text[self.text] = True
        return tuple(
            replace(
                document,
                start_token=int(places[document.start_token]),
                end_token=int(places[document.end_token]),
                text_tokens=int((mask & is_text)[document.start_token : document.end_token].sum()),
            )
            for document in self.context.documents
        )
