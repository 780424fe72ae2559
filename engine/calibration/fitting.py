"""Weights of heads with which the pages that hold the answers get most votes."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import softplus

STEPS = 150
LEARNING_RATE = 0.1
# How sharply the best page wins while weights are fitted.
SHARPNESS = 3.0
# A page without votes has this many: the logarithm stays finite.
FLOOR = 1e-3
# Price of the mean weight: heads that bring nothing come to count nothing.
SPARSITY = 0.2
# The part of a stored weight that was fitted; the rest counts every head alike. Half and half lost
# nothing on texts unlike the generated ones.
FITTED_PART = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """How the heads voted for a question whose answer is known.

    Args:
        votes: fp32 [num_heads of all layers, pages].
        right: bool [pages], which of them hold the answer.
        held_out: it is for measuring, not for fitting.
    """

    votes: torch.Tensor
    right: torch.Tensor
    held_out: bool = False


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


def recall_1(questions: Sequence[Question], weights: torch.Tensor) -> float:
    """Which part of the questions have the answer on the page with most votes."""
    found = [bool(question.right[(weights @ question.votes).argmax()]) for question in questions]
    return sum(found) / len(found)
