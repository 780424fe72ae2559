"""The attention of each kind of forward pass: reading a document, asking, answering.

`PrefillPass` reads the document. `QuestionPass` runs the tokens of a question, each with its own
selection, while all heads vote for passages; `UnvotedPass` does without the votes. `AnswerPass`
generates: with a fixed set of passages for every layer and head (share), or with the method's own
selection (attend).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hipcli.engine.passes.answer import AnswerPass
from hipcli.engine.passes.prefill import PrefillPass
from hipcli.engine.passes.question import QuestionPass, UnvotedPass

__all__ = ["AnswerPass", "Passes", "PrefillPass", "QuestionPass", "UnvotedPass"]


@dataclass(frozen=True, slots=True)
class Passes:
    """Makers of the passes that look at a context; another kind of store brings its own.

    Args:
        question, unvoted, answer: called with the arguments of the classes that stand here.
    """

    question: Callable[..., Any] = QuestionPass
    unvoted: Callable[..., Any] = UnvotedPass
    answer: Callable[..., Any] = AnswerPass
