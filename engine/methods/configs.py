"""Settings of the attention methods: one frozen class each, defaults stated once, no torch."""

from dataclasses import dataclass

PAGE_TOKENS = 64


def check_pages(config: object, *names: str) -> None:
    """Raise ValueError unless the named fields are positive multiples of the page size."""
    for name in names:
        value = getattr(config, name)
        if value < PAGE_TOKENS or value % PAGE_TOKENS:
            raise ValueError(f"{name} is {value}; it must be a positive multiple of 64")


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
        for name in ("query_stride", "candidate_refresh_steps", "block_refresh_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.query_distance_tokens < 1:
            raise ValueError("query_distance_tokens must be at least 1")
        if self.candidate_tokens < self.budget_tokens:
            raise ValueError(
                f"candidate_tokens is {self.candidate_tokens}; it must be at least"
                f" budget_tokens ({self.budget_tokens})"
            )


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
