"""A second look at the pages with most votes, one by one.

The votes are cast while a head sees the whole context, and each says no more than where it looks.
Of a question in other words than the text's they often prefer a page that has one of its words to
the page that answers it. So each of the best pages is attended alone, as the store has it behind
the scaffold, and the question is run behind it. That tells two things, which join the votes:

* How likely the question's own words are behind the page. All pages have the same words to explain,
  so what is common to them cancels. Query likelihood is the oldest of the language models' ways to
  rank (Ponte and Croft 1998); alone it is worse than the votes (docs/log.md).
* How much of its attention each head gives the page rather than scaffold and question. What a head
  means by that differs from head to head, so it counts where a calibration says how
  (`models/heads.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from hipcli.engine.forward.runner import Runner
from hipcli.engine.forward.step import StepInput
from hipcli.engine.methods.plain import products, rotated
from hipcli.engine.store.pages import PAGE_TOKENS, KVStore
from hipcli.kernels.cpu_common import fold_heads, unfold_heads

# So many tokens pass at once: few enough for the logits of a large vocabulary.
PASS_TOKENS = 256
# What the log-likelihood of the question adds to the logarithm of a page's votes, where no
# calibration says more.
LIKELIHOOD_WEIGHT = 0.15
# Of attention: keeps the logarithm of what gets none finite.
FLOOR = 1e-4


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What was seen of some pages.

    Args:
        likelihoods: fp32 [pages], logarithm of the probability of the question's own words.
        attention: fp32 [pages, 2, num_layers, num_heads], logarithm of the attention that a page
            gets: of the own words together, and of the last token of the question.
    """

    likelihoods: torch.Tensor
    attention: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class LookWeights:
    """What a second look adds to the logarithm of the votes.

    Args:
        likelihood: factor of the likelihoods.
        attention: fp32 [2, num_layers, num_heads], factors of `Seen.attention`; None for none.
    """

    likelihood: float = LIKELIHOOD_WEIGHT
    attention: torch.Tensor | None = None

    def scores(self, seen: Seen) -> torch.Tensor:
        """For each page fp32 [pages]; only differences between them mean something."""
        scores = self.likelihood * seen.likelihoods
        if self.attention is not None:
            scores = scores + (seen.attention * self.attention).sum((1, 2, 3))
        return scores


@dataclass(slots=True)
class SidePass:
    """Copies of the same tokens, each of which attends some rows and itself alone.

    Args:
        method: whose geometry the step asks for.
        rows: for each copy int64 [n], tokens of the store in the order in which they stand.
        scaffold_tokens: how many of the rows come before the page.
        own_words: which tokens of a copy are the asker's own, [start, end).

    Attributes:
        attention: for each layer fp32 [copies, 2, num_heads], as `Seen` has it.
    """

    method: Any
    rows: Sequence[torch.Tensor]
    scaffold_tokens: int
    own_words: tuple[int, int]
    attention: list[torch.Tensor] = field(default_factory=list)

    def attend(self, layer: int, q: torch.Tensor, step: StepInput) -> torch.Tensor:
        k, v = step.store.tokens(layer, step.start + len(q))
        tokens, outs, seen = len(q) // len(self.rows), [], []
        for number, rows in enumerate(self.rows):
            own = slice(step.start + number * tokens, step.start + (number + 1) * tokens)
            keys, values = (torch.cat((x[rows], x[own])) for x in (k, v))
            mine = q[number * tokens : (number + 1) * tokens]
            out, weights = _attend(mine, keys, values, step)
            outs.append(out)
            page = weights[:, :, self.scaffold_tokens : len(rows)].sum(-1)
            words = page[:, self.own_words[0] : self.own_words[1]].sum(1)
            seen.append(torch.stack((words, page[:, -1])))
        self.attention.append(torch.stack(seen).add_(FLOOR).log_())
        return torch.cat(outs)


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, step: StepInput
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `plain.attend_packed`, with the weights of all keys: fp32 [num_heads, T, n]."""
    tokens, (length, heads, _) = len(q), k.shape
    positions = torch.arange(length, device=q.device)
    k = rotated(k, positions, length, step)
    q = rotated(q, positions[length - tokens :], length, step)
    scores = products(fold_heads(q, heads), k.transpose(0, 1).contiguous())
    scores = (scores.float() * step.softmax_scale).unflatten(1, (-1, tokens))
    later = positions > positions[length - tokens :, None]
    weights = scores.masked_fill_(later, -torch.inf).softmax(-1)
    out = torch.bmm(weights.to(v.dtype).flatten(1, 2), v.transpose(0, 1))
    return unfold_heads(out, tokens), weights.flatten(0, 1)


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

    def at(self, pages: Sequence[int], ids: torch.Tensor, own_words: tuple[int, int]) -> Seen:
        """Run a question behind each page.

        Args:
            pages: of the store.
            ids: int64 [T], the question.
            own_words: which of its tokens are the asker's own, [start, end); the first of all
                tokens has no probability.

        Raises:
            DamagedSessionError: a page is not what was written.
        """
        each = max(1, PASS_TOKENS // len(ids))
        parts = [
            self._of_group(pages[start : start + each], ids, own_words)
            for start in range(0, len(pages), each)
        ]
        return Seen(
            torch.cat([part.likelihoods for part in parts]),
            torch.cat([part.attention for part in parts]),
        )

    def _of_group(
        self, pages: Sequence[int], ids: torch.Tensor, own_words: tuple[int, int]
    ) -> Seen:
        copied = sorted({0, *pages})
        aside = self._copy(copied, len(pages) * len(ids))
        rows = [self._rows(page, copied.index(page)).to(aside.device) for page in pages]
        looking = SidePass(self.method, rows, self._scaffold, own_words)
        step = StepInput(aside, self.runner.tables, looking, aside.length)
        many = ids.repeat(len(pages))
        logits = self.runner.logits(many, step, keep=len(many)).unflatten(0, (len(pages), -1))
        first, end = max(own_words[0], 1), own_words[1]
        wanted = ids[first:end].to(logits.device).expand(len(pages), -1).unsqueeze(-1)
        log_p = logits[:, first - 1 : end - 1].log_softmax(-1).gather(-1, wanted)
        return Seen(log_p.sum((1, 2)), torch.stack(looking.attention, 2))

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

    @property
    def _scaffold(self) -> int:
        """Tokens of the first page that stand before every page."""
        return min(self.scaffold_tokens, PAGE_TOKENS) or PAGE_TOKENS

    def _rows(self, page: int, place: int) -> torch.Tensor:
        """What a copy attends: the scaffold on the first page, and what a page has of the text."""
        start, end = max(page * PAGE_TOKENS, self._scaffold), (page + 1) * PAGE_TOKENS
        shift = (place - page) * PAGE_TOKENS
        text = torch.arange(start, min(end, self.context_tokens)) + shift
        return torch.cat((torch.arange(self._scaffold), text))
