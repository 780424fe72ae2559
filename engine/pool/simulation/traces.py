"""Requests with the published shape: mostly short, few long, very few up to millions of tokens.

Published are the sources (a chat set, a long-document set, lengths met in production), and the
longest request of each trace: 60K tokens for traces 0 to 2, then 200K to 2,000K. Not published, or
not found, are the mixes; those here are assumptions, and so are the limits between 200K and 2,000K.
"""

from dataclasses import dataclass

import numpy as np

# Chat: log-normal. Documents and long requests: as many in each doubling of length.
_CHAT_MEDIAN, _CHAT_SPREAD = 800, 1.0
_DOCUMENT_TOKENS = 3_000
_LONG_TOKENS = 60_000
_ANSWER_MEDIAN, _ANSWER_SPREAD = 200, 0.7


@dataclass(frozen=True, slots=True)
class TraceConfig:
    """A mix of requests.

    Args:
        name: for people.
        longest_tokens: of any request.
        document_share: of requests, those of 3,000 to 60,000 tokens.
        long_share: of requests, those of 60,000 to `longest_tokens`.
    """

    name: str
    longest_tokens: int
    document_share: float
    long_share: float = 0.0

    def __post_init__(self) -> None:
        shares = self.document_share, self.long_share
        if min(shares) < 0 or sum(shares) > 1:
            raise ValueError(f"shares are {shares}; they must not be negative or exceed 1")


TRACES = (
    TraceConfig("0: 1-60K", 60_000, 0.05),
    TraceConfig("1: 1-60K", 60_000, 0.15),
    TraceConfig("2: 1-60K", 60_000, 0.30),
    TraceConfig("3: 1-200K", 200_000, 0.05, 0.01),
    TraceConfig("4: 1-300K", 300_000, 0.05, 0.01),
    TraceConfig("5: 1-500K", 500_000, 0.05, 0.01),
    TraceConfig("6: 1-800K", 800_000, 0.05, 0.01),
    TraceConfig("7: 1-1200K", 1_200_000, 0.05, 0.01),
    TraceConfig("8: 1-2000K", 2_000_000, 0.05, 0.01),
)


@dataclass(frozen=True, slots=True)
class Job:
    """One request.

    Args:
        number: in order of arrival.
        prompt_tokens, answer_tokens: its lengths.
    """

    number: int
    prompt_tokens: int
    answer_tokens: int


def generate(config: TraceConfig, count: int, seed: int) -> list[Job]:
    """`count` requests of a mix; prompt and answer together never exceed its longest."""
    random = np.random.default_rng(seed)
    kind = random.random(count)
    chat = random.lognormal(np.log(_CHAT_MEDIAN), _CHAT_SPREAD, count)
    documents = _spread(random, count, _DOCUMENT_TOKENS, _LONG_TOKENS)
    long = _spread(random, count, _LONG_TOKENS, config.longest_tokens)
    lengths = np.where(kind < config.document_share, documents, chat.clip(1, 16_000))
    is_long = kind > 1 - config.long_share
    lengths = np.where(is_long, long, lengths)
    answers = random.lognormal(np.log(_ANSWER_MEDIAN), _ANSWER_SPREAD, count).clip(8, 2_000)
    return [
        Job(number, max(1, int(min(length, config.longest_tokens - answer))), int(answer))
        for number, (length, answer) in enumerate(zip(lengths, answers, strict=True))
    ]


def _spread(random: np.random.Generator, count: int, low: int, high: int) -> np.ndarray:
    return np.exp(random.uniform(np.log(low), np.log(max(high, low)), count))
