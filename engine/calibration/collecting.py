"""How every head votes for every question about a text, which is read once."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace

import torch

from hipcli.engine.answering.answerer import QUESTION_BLOCK_TOKENS
from hipcli.engine.answering.second_look import SecondLook, Seen
from hipcli.engine.answering.vote import Ballot, head_votes
from hipcli.engine.calibration.fitting import Question
from hipcli.engine.config import CacheConfig
from hipcli.engine.evaluation.composing import Prompts
from hipcli.engine.evaluation.grading import asked_pages
from hipcli.engine.evaluation.placing import Case
from hipcli.engine.events import Event, Phase
from hipcli.engine.forward.step import StepInput
from hipcli.engine.loaded import LoadedEngine
from hipcli.engine.passes import QuestionPass
from hipcli.engine.reading.context import ContextReader
from hipcli.engine.request import AskRequest
from hipcli.engine.store.pages import PAGE_TOKENS, KVStore

# Pages that no head and no sum of heads prefers cannot win: only so many are kept of a question.
MOST_PAGES = 200
# So many of these are looked at again.
LOOKS = 12


@dataclass(slots=True)
class HeadBallot(Ballot):
    """A ballot that remembers who voted: all heads alike, words do not count.

    Attributes:
        by_head: for each layer fp32 [num_heads, num_pages], summed over the question's words.
    """

    by_head: list[torch.Tensor] = field(default_factory=list)

    def count(self, layer: int, page_max: torch.Tensor, lse: torch.Tensor) -> None:
        """See `Ballot.count`."""
        votes = head_votes(self.own_words, page_max, lse)
        self.by_head.append(votes.sum(0))
        self.add(votes)


def collect(
    loaded: LoadedEngine,
    prompts: Prompts,
    case: Case,
    held_out: Sequence[bool],
    chunk_tokens: int,
) -> Generator[Event, None, list[Question]]:
    """Read a text and ask all its questions; events of reading, then a question for each probe.

    Args:
        loaded: the model and its method.
        prompts: the product's prompt.
        case: the text.
        held_out: which probes are kept out of the fit.
        chunk_tokens: of the text that pass through the model at once.
    """
    asked = [prompts.question(probe.question) for probe in case.probes]
    placed = case.placed
    request = AskRequest(
        placed.ids, asked[0][0], placed.prefix_tokens, cache=CacheConfig(directory=None)
    )
    reader = ContextReader(
        runner=loaded.runner,
        method=loaded.method,
        request=request,
        identity=loaded.identity,
        chunk_tokens=chunk_tokens,
        spare_tokens=max(len(ids) for ids, _ in asked),
    )
    context = yield from reader.read()
    tail = context.store.tail()
    questions = []
    for probe, (ids, own_words), kept_out in zip(case.probes, asked, held_out, strict=True):
        yield Phase("vote")
        context.store.rewind(tail)
        ballot = HeadBallot(
            len(placed.ids),
            loaded.vote_distance_tokens,
            own_words,
            first_token=placed.prefix_tokens,
        )
        _ask(loaded, context.store, ids, ballot)
        wanted = sorted(frozenset().union(*asked_pages(case, probe)))
        votes = torch.cat(ballot.by_head).cpu()
        question = candidates(votes, wanted, placed.prefix_tokens // PAGE_TOKENS, kept_out)
        look = SecondLook(
            loaded.runner, loaded.method, context.store, len(placed.ids), placed.prefix_tokens
        )
        questions.append(_looked_at(question, look, torch.tensor(ids), own_words))
    return questions


def _looked_at(
    question: Question, look: SecondLook, ids: torch.Tensor, own_words: tuple[int, int]
) -> Question:
    """A question with what a second look sees of the best pages and of one that is right."""
    most = question.votes.sum(0).topk(min(LOOKS, len(question.pages))).indices
    right = question.right.nonzero()[:1, 0]
    looked = torch.cat((most, right)).unique()
    seen = look.at(question.pages[looked].tolist(), ids, own_words)
    # Copies outside of inference mode, as of the votes.
    seen = Seen(seen.likelihoods.cpu().clone(), seen.attention.cpu().clone())
    return replace(question, looked=looked, seen=seen)


def _ask(loaded: LoadedEngine, store: KVStore, ids: list[int], ballot: Ballot) -> None:
    """Let the heads vote."""
    loaded.method.reset()
    budget_tokens: int = getattr(loaded.method.config, "budget_tokens", 2048)
    asking = QuestionPass(loaded.method, ballot, budget_tokens, QUESTION_BLOCK_TOKENS)
    step = StepInput(store, loaded.runner.tables, asking, store.length)
    loaded.runner.forward(torch.tensor(ids), step)


def candidates(
    votes: torch.Tensor, wanted: Sequence[int], first_page: int, held_out: bool
) -> Question:
    """A question with the pages that may win it: those with most votes, each head's best, and
    those that hold the answer.

    Args:
        votes: fp32 [num_heads of all layers, num_pages].
        wanted: pages that hold the answer.
        first_page: nobody votes for pages before it.
        held_out: it is kept out of the fit.
    """
    inside = votes[:, first_page:]
    most = inside.sum(0).topk(min(MOST_PAGES, inside.shape[1])).indices
    right = torch.tensor(wanted) - first_page
    kept = torch.cat((most, inside.argmax(1), right)).unique()
    # A copy outside of inference mode, which the fit can be derived through.
    right_ones = torch.isin(kept, right)
    return Question(inside[:, kept].clone(), right_ones, held_out, kept + first_page)
