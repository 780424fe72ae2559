"""Settings of the attention methods: one frozen class each, defaults stated once, no torch."""

from dataclasses import dataclass

PAGE_TOKENS = 64


def check_pages(config: object, *names: str) -> None:
    """Raise ValueError unless the named fields are positive multiples of the page size."""
    for name in names:
        value = getattr(config, name)
        if value < PAGE_TOKENS or value % PAGE_TOKENS:
            raise ValueError(f"{name} is {value}; it must be a positive multiple of 64")


def check_at_least(config: object, least: int, *names: str) -> None:
    """Raise ValueError unless the named fields are `least` or more."""
    for name in names:
        value = getattr(config, name)
        if value < least:
            raise ValueError(f"{name} is {value}; it must be at least {least}")


@dataclass(frozen=True, slots=True)
class HipConfig:
    """Settings of the method `hip`; all `_tokens` are tokens of context.

    Args:
        sink_tokens: first tokens that every query attends.
        window_tokens: last tokens that every query attends.
        budget_tokens: tokens selected for a query of the question or the answer, per KV head.
        prefill_budget_tokens: the same for a query block while a document is read.
        dense_tokens: queries at earlier positions attend everything.
        block_size_k: tokens of a selected block, when queries are selected for one by one.
        query_distance_tokens: distance between query and keys while selecting.
        candidate_tokens: what stage 1 hands to stage 2.
        query_stride: neighbouring queries of a block that are averaged for stage 1.
        candidate_refresh_steps: decode steps between two runs of stage 1.
        block_refresh_steps: decode steps between two runs of stage 2.
    """

    sink_tokens: int = 256
    window_tokens: int = 1024
    budget_tokens: int = 2048
    prefill_budget_tokens: int = 1024
    dense_tokens: int = 3072
    block_size_k: int = 16
    query_distance_tokens: int = 1024
    candidate_tokens: int = 16384
    query_stride: int = 16
    candidate_refresh_steps: int = 16
    block_refresh_steps: int = 4

    def __post_init__(self) -> None:
        check_pages(self, "sink_tokens", "window_tokens", "budget_tokens", "prefill_budget_tokens")
        if self.block_size_k not in (8, 16, 32, 64):
            raise ValueError(f"block_size_k is {self.block_size_k}; it must be 8, 16, 32 or 64")
        check_at_least(self, 1, "query_stride", "candidate_refresh_steps", "block_refresh_steps")
        check_at_least(self, 1, "query_distance_tokens")
        if self.candidate_tokens < self.budget_tokens:
            raise ValueError(
                f"candidate_tokens is {self.candidate_tokens}; it must be at least"
                f" budget_tokens ({self.budget_tokens})"
            )


@dataclass(frozen=True, slots=True)
class QuestConfig:
    """Settings of the method `quest`.

    Args:
        sink_tokens: first tokens that every query attends.
        window_tokens: last tokens that every query attends.
        budget_tokens: tokens selected for a query, or a block of 64 queries, per KV head.
        query_distance_tokens: distance between query and keys while selecting.
    """

    sink_tokens: int = 256
    window_tokens: int = 1024
    budget_tokens: int = 2048
    query_distance_tokens: int = 1024

    def __post_init__(self) -> None:
        check_pages(self, "sink_tokens", "window_tokens", "budget_tokens")
        check_at_least(self, 1, "query_distance_tokens")


@dataclass(frozen=True, slots=True)
class WindowConfig:
    """Settings of the method `window`.

    Args:
        sink_tokens: first tokens that every query attends.
        window_tokens: last tokens that every query attends.
    """

    sink_tokens: int = 64
    window_tokens: int = 4096

    def __post_init__(self) -> None:
        check_pages(self, "sink_tokens", "window_tokens")


@dataclass(frozen=True, slots=True)
class DenseConfig:
    """Dense attention has no settings."""
