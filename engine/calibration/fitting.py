"""Weights of heads with which the pages that hold the answers get most votes."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch.nn.functional import softplus

from hipcli.engine.answering.second_look import LIKELIHOOD_WEIGHT, LookWeights, Seen

STEPS = 150
LEARNING_RATE = 0.1
# How sharply the best page wins while weights are fitted.
SHARPNESS = 3.0
# A page without votes has this many: the logarithm stays finite.
FLOOR = 1e-3
# Price of the mean weight: heads that bring nothing come to count nothing.
SPARSITY = 0.2
# The part of a stored weight that was fitted; the rest counts every head alike. More of it finds
# more where no word is shared, and loses reworded questions (docs/log.md).
FITTED_PART = 0.25
# The same of the weights of a second look. There are hundreds of them for as many questions: the
# price of their squares and the few steps keep them small.
LOOK_STEPS = 80
LOOK_RATE = 0.02
LOOK_DECAY = 0.03
# The part of them that is stored: more of it loses pages that the votes had first.
LOOK_PART = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """How the heads voted for a question whose answer is known.

    Args:
        votes: fp32 [num_heads of all layers, pages].
        right: bool [pages], which of them hold the answer.
        held_out: it is for measuring, not for fitting.
        pages: int64 [pages], which pages of the context they are; of use while collecting.
        looked: int64 [n], which of the pages were looked at again, one right one among them.
        seen: what was seen of these.
    """

    votes: torch.Tensor
    right: torch.Tensor
    held_out: bool = False
    pages: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    looked: torch.Tensor | None = None
    seen: Seen | None = None


def fit(questions: Sequence[Question], steps: int = STEPS) -> torch.Tensor:
    """Weights of heads fp32 [num_heads of all layers], mean 1, none below the even part.

    Minimised is the mean over questions of the negative log-likelihood of the right pages, a
    softmax over SHARPNESS * log(votes), plus SPARSITY times the mean weight. The same questions
    give the same weights.

    Args:
        questions: at least one, with as many heads each.
    """
    raw = torch.zeros(questions[0].votes.shape[0], requires_grad=True)
    optimiser = torch.optim.Adam([raw], lr=LEARNING_RATE)
    with torch.enable_grad():
        for _ in range(steps):
            weights = softplus(raw)
            losses = [_loss(weights, question) for question in questions]
            loss = torch.stack(losses).mean() + SPARSITY * weights.mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    fitted = softplus(raw.detach())
    return FITTED_PART * fitted / fitted.mean() + (1 - FITTED_PART)


def _loss(weights: torch.Tensor, question: Question) -> torch.Tensor:
    scores = SHARPNESS * (weights @ question.votes + FLOOR).log()
    return scores.logsumexp(0) - scores[question.right].logsumexp(0)


def fit_look(questions: Sequence[Question], weights: torch.Tensor) -> LookWeights:
    """What a second look adds to the logarithm of votes that are weighed so.

    Minimised is the mean over questions of the negative log-likelihood of the right pages among
    those looked at, plus LOOK_DECAY times the sum of squares of the attention's weights.

    Args:
        questions: that were looked at again.
        weights: of heads, as `fit` finds them.
    """
    rows = [_looked(question, weights) for question in questions]
    _, seen, _ = rows[0]
    attention = torch.zeros(seen.attention[0].shape, requires_grad=True)
    likelihood = torch.tensor(LIKELIHOOD_WEIGHT, requires_grad=True)
    optimiser = torch.optim.Adam([attention, likelihood], lr=LOOK_RATE)
    with torch.enable_grad():
        for _ in range(LOOK_STEPS):
            found = LookWeights(likelihood, attention)  # type: ignore[arg-type]
            losses = []
            for votes, seen, right in rows:
                scores = votes + found.scores(seen)
                losses.append(scores.logsumexp(0) - scores[right].logsumexp(0))
            loss = torch.stack(losses).mean() + LOOK_DECAY * attention.square().sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return LookWeights(LOOK_PART * likelihood.item(), LOOK_PART * attention.detach())


def _looked(question: Question, weights: torch.Tensor) -> tuple[torch.Tensor, Seen, torch.Tensor]:
    """Of the pages that were looked at: log votes, what was seen, which are right."""
    assert question.looked is not None and question.seen is not None, "it was looked at again"
    votes = (weights @ question.votes[:, question.looked] + FLOOR).log()
    return votes, question.seen, question.right[question.looked]


def recall_1_looked(
    questions: Sequence[Question], weights: torch.Tensor, look: LookWeights
) -> float:
    """As `recall_1`, after a second look."""
    found = []
    for question in questions:
        votes, seen, right = _looked(question, weights)
        found.append(bool(right[(votes + look.scores(seen)).argmax()]))
    return sum(found) / len(found)


def recall_1(questions: Sequence[Question], weights: torch.Tensor) -> float:
    """Which part of the questions have the answer on the page with most votes."""
    found = [bool(question.right[(weights @ question.votes).argmax()]) for question in questions]
    return sum(found) / len(found)
