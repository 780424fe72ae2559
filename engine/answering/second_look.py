"""A second look at the pages with most votes: behind which of them is the question likeliest?

The votes are cast while a head sees the whole context, and each says no more than where it looks.
Of a question in other words than the text's they often prefer a page that has one of its words to
the page that answers it. So each of the best pages is attended alone, as the store has it behind
the scaffold, and the question's own words are run behind it: the logarithm of their probability
tells a page that leads to the question from one that shares a word with it. All pages have the same
words to explain, so what is common to them cancels. It joins the votes, because alone it is worse
than they are (docs/log.md).

Query likelihood is the oldest of the language models' ways to rank (Ponte and Croft 1998).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hipcli.engine.forward.runner import Runner
from hipcli.engine.forward.step import StepInput
from hipcli.engine.methods.plain import attend_packed
from hipcli.engine.store.pages import PAGE_TOKENS, KVStore

# So many tokens pass at once: few enough for the logits of a large vocabulary.
PASS_TOKENS = 128


@dataclass(frozen=True, slots=True)
class SidePass:
    """Copies of the same tokens, each of which attends some rows and itself alone.

    Args:
        method: whose geometry the step asks for.
        rows: for each copy int64 [n], tokens of the store in the order in which they stand.
    """

    method: Any
    rows: Sequence[torch.Tensor]

    def attend(self, layer: int, q: torch.Tensor, step: StepInput) -> torch.Tensor:
        k, v = step.store.tokens(layer, step.start + len(q))
        tokens = len(q) // len(self.rows)
        outs = []
        for number, rows in enumerate(self.rows):
            own = slice(step.start + number * tokens, step.start + (number + 1) * tokens)
            keys, values = (torch.cat((x[rows], x[own])) for x in (k, v))
            mine = q[number * tokens : (number + 1) * tokens]
            outs.append(attend_packed(mine, keys, values, step))
        return torch.cat(outs)


@dataclass(frozen=True, slots=True)
class SecondLook:
    """Looks at pages of a store one by one.

    Args:
        runner: the model.
        method: the attention method the context was read with.
        store: holds the context, and maybe more behind it; it stays as it is.
        context_tokens: of the store.
        scaffold_tokens: how many of its first tokens are scaffold.
    """

    runner: Runner
    method: Any
    store: KVStore
    context_tokens: int
    scaffold_tokens: int

    def likelihoods(self, pages: Sequence[int], ids: torch.Tensor, first: int) -> list[float]:
        """The logarithm of the probability of some words behind each page.

        Args:
            pages: of the store.
            ids: int64 [T], the question up to the end of its own words.
            first: where these begin; the first token of all has no probability.

        Raises:
            DamagedSessionError: a page is not what was written.
        """
        each = max(1, PASS_TOKENS // len(ids))
        groups = (pages[start : start + each] for start in range(0, len(pages), each))
        return [value for group in groups for value in self._of_group(group, ids, max(first, 1))]

    def _of_group(self, pages: Sequence[int], ids: torch.Tensor, first: int) -> Iterator[float]:
        copied = sorted({0, *pages})
        aside = self._copy(copied, len(pages) * len(ids))
        rows = [self._rows(page, copied.index(page)).to(aside.device) for page in pages]
        step = StepInput(aside, self.runner.tables, SidePass(self.method, rows), aside.length)
        many = ids.repeat(len(pages))
        logits = self.runner.logits(many, step, keep=len(many)).unflatten(0, (len(pages), -1))
        wanted = ids[first:].to(logits.device).expand(len(pages), -1).unsqueeze(-1)
        log_p = logits[:, first - 1 : -1].log_softmax(-1).gather(-1, wanted)
        yield from log_p.sum((1, 2)).tolist()

    def _copy(self, pages: list[int], spare_tokens: int) -> KVStore:
        """A store of these pages, ascending, with room behind them."""
        store = self.store
        length = len(pages) * PAGE_TOKENS
        copy = KVStore(store.layout, length + spare_tokens, store.backend, store.device)
        index = torch.tensor(pages)
        with torch.inference_mode():
            for layer in range(store.layout.num_layers):
                store.check_attended(layer, index, PAGE_TOKENS, 0, self.context_tokens)
                copy.put(layer, 0, *store.picked(layer, index))
        copy.length = length
        return copy

    def _rows(self, page: int, place: int) -> torch.Tensor:
        """What a copy attends: the scaffold on the first page, and what a page has of the text."""
        scaffold = min(self.scaffold_tokens, PAGE_TOKENS) or PAGE_TOKENS
        start, end = max(page * PAGE_TOKENS, scaffold), (page + 1) * PAGE_TOKENS
        shift = (place - page) * PAGE_TOKENS
        text = torch.arange(start, min(end, self.context_tokens)) + shift
        return torch.cat((torch.arange(scaffold), text))
