"""Tokens of an answer, several of them checked in one pass where they can be guessed.

A pass runs the last token and the guesses behind it. Its rows of logits are those that single
steps would have: from each the next token is drawn as ever, and as long as it is the guessed one,
the next row holds too. So greedy answers are the same tokens, and sampled ones are drawn from the
same probabilities with the same random numbers: drawing first and comparing is rejection sampling
(Leviathan et al., arXiv 2211.17192) where the draft has one token only.

What equality rests on: a product of several rows may round otherwise than that of one row. In fp32
that is the last bit, in bf16 two tokens whose logits differ by less than such an error may change
places, as they may between two machines. A guess counts only if it is what its own row draws.
"""

from collections.abc import Generator

import torch

from hipcli.engine.answering.drafting import Drafter
from hipcli.engine.answering.sampler import Sampler
from hipcli.engine.forward.runner import Runner
from hipcli.engine.forward.step import StepInput
from hipcli.engine.passes import AnswerPass
from hipcli.engine.store.pages import KVStore


def can_draft(store: KVStore) -> bool:
    """Tokens can be forgotten: those that joined a quantised page changed the scale of others.

    A tiered store is left to single steps, which know what to fetch.
    """
    return not store.layout.quantised and not store.tiered


def generate_drafted(
    runner: Runner,
    store: KVStore,
    attention: AnswerPass,
    sampler: Sampler,
    logits: torch.Tensor,
    max_new_tokens: int,
    drafter: Drafter,
) -> Generator[int, None, None]:
    """Token ids of an answer; see `decoding.generate`, whose arguments these are.

    Args:
        drafter: guesses. It has been given the texts to guess from, the prompt's end last.
    """
    token, count = sampler.pick(logits), 1
    while True:
        yield token
        if count >= max_new_tokens:
            return
        start = store.length
        drafter.push(token)
        # The last token of all is never run, so no guess is made that would come behind it.
        room = attention.together(start, min(drafter.most + 1, max_new_tokens - count)) - 1
        draft = drafter.propose(room) if room else []
        step = StepInput(store, runner.tables, attention, start)
        rows = runner.logits(torch.tensor([token, *draft]), step, keep=len(draft) + 1)
        accepted = 0
        token = sampler.pick(rows[0])
        try:
            while accepted < len(draft) and token == draft[accepted]:
                accepted += 1
                store.length = start + accepted
                yield token
                count += 1
                drafter.push(token)
                token = sampler.pick(rows[accepted])
        finally:
            # Also where the answer ends among the guesses.
            drafter.judge(len(draft), accepted)
        store.length = start + accepted + 1
        count += 1
