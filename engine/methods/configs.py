"""Settings of the attention methods: one frozen class each, defaults stated once, no torch."""

from dataclasses import dataclass, replace
from typing import ClassVar

PAGE_TOKENS = 64
# A reach beyond every context.
EVERYTHING = 1 << 30


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
        prefill_budget_tokens: the same for a query block while a document is read; 0 for what
            suits the device.
        prefill_reach_tokens: the query block selects among so many tokens before its window; 0
            for what suits the device.
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
    prefill_budget_tokens: int = 0
    prefill_reach_tokens: int = 0
    dense_tokens: int = 3072
    block_size_k: int = 16
    query_distance_tokens: int = 1024
    candidate_tokens: int = 16384
    query_stride: int = 16
    candidate_refresh_steps: int = 16
    block_refresh_steps: int = 4

    # What 0 stands for, on a CPU and on other devices. What is selected while a document is read
    # changes little of the answers (docs/log.md), and a CPU pays most for it.
    AUTOMATIC: ClassVar[dict[str, tuple[int, int]]] = {
        "prefill_budget_tokens": (256, 1024),
        "prefill_reach_tokens": (131072, EVERYTHING),
    }

    def __post_init__(self) -> None:
        check_pages(self, "sink_tokens", "window_tokens", "budget_tokens")
        check_pages(self, *(name for name in self.AUTOMATIC if getattr(self, name)))
        if self.block_size_k not in (8, 16, 32, 64):
            raise ValueError(f"block_size_k is {self.block_size_k}; it must be 8, 16, 32 or 64")
        check_at_least(self, 1, "query_stride", "candidate_refresh_steps", "block_refresh_steps")
        check_at_least(self, 1, "query_distance_tokens")
        if self.candidate_tokens < self.budget_tokens:
            raise ValueError(
                f"candidate_tokens is {self.candidate_tokens}; it must be at least"
                f" budget_tokens ({self.budget_tokens})"
            )

    def on(self, device: str) -> "HipConfig":
        """The same with numbers for what was left to the device, a type such as `cpu`."""
        column = 0 if device == "cpu" else 1
        numbers = {
            name: values[column]
            for name, values in self.AUTOMATIC.items()
            if not getattr(self, name)
        }
        return replace(self, **numbers)


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
class HipPaperConfig:
    """Settings of the method `hip-paper`; the defaults are the paper's "3K".

    Args:
        sink_tokens: first tokens that every query attends.
        window_tokens: last tokens that every query attends.
        budget_tokens: tokens selected for a block of 64 queries or a query, for all heads.
        first_layers: so many layers at the bottom select more, with chunks at their indices.
        first_layers_factor: how many times `budget_tokens` they select.
        chunk_tokens, middle_chunk_tokens, block_tokens: sizes of chunks in stages 1, 2, 3.
        first_kept_tokens, second_kept_tokens: what stages 1 and 2 hand on, at least what is
            selected in the end.
        first_refresh_steps, second_refresh_steps, third_refresh_steps: decode steps between two
            runs of stages 1, 2, 3.
        middle_probes: 1 to score the middle key of each half, 0 the first one.
    """

    sink_tokens: int = 256
    window_tokens: int = 1024
    budget_tokens: int = 2048
    first_layers: int = 3
    first_layers_factor: int = 2
    chunk_tokens: int = 256
    middle_chunk_tokens: int = 32
    block_tokens: int = 8
    first_kept_tokens: int = 32768
    second_kept_tokens: int = 8192
    first_refresh_steps: int = 16
    second_refresh_steps: int = 8
    third_refresh_steps: int = 4
    middle_probes: int = 1

    def __post_init__(self) -> None:
        check_pages(self, "sink_tokens", "window_tokens", "budget_tokens")
        check_at_least(self, 1, "first_layers_factor", "block_tokens", "third_refresh_steps")
        check_at_least(self, 0, "first_layers")
        self._check_divides("block_tokens", "middle_chunk_tokens", "chunk_tokens")
        self._check_divides("third_refresh_steps", "second_refresh_steps", "first_refresh_steps")
        if self.chunk_tokens & (self.chunk_tokens - 1) or PAGE_TOKENS % self.block_tokens:
            raise ValueError("chunks must be powers of two, and block_tokens at most 64")
        if not self.first_kept_tokens >= self.second_kept_tokens >= self.middle_chunk_tokens:
            raise ValueError(
                f"first_kept_tokens ({self.first_kept_tokens}) must not fall below"
                f" second_kept_tokens ({self.second_kept_tokens}), nor that below a chunk"
            )
        if self.middle_probes not in (0, 1):
            raise ValueError(f"middle_probes is {self.middle_probes}; it must be 0 or 1")

    def _check_divides(self, *names: str) -> None:
        for small, large in zip(names, names[1:], strict=False):
            if getattr(self, large) % getattr(self, small):
                raise ValueError(
                    f"{large} is {getattr(self, large)}; it must be a multiple of {small}"
                    f" ({getattr(self, small)})"
                )


@dataclass(frozen=True, slots=True)
class ReAttentionConfig:
    """Settings of the method `reattention`.

    Args:
        sink_tokens: first tokens that every query attends.
        window_tokens: tokens before a block of queries that it attends.
        budget_tokens: tokens selected for a block of queries, for all heads.
        span_tokens: tokens taken around each token that is voted for.
        keys_per_query: keys that each query and head votes for.
        query_block_tokens: queries that vote together while a document is read.
    """

    sink_tokens: int = 256
    window_tokens: int = 1024
    budget_tokens: int = 2048
    span_tokens: int = 32
    keys_per_query: int = 4
    query_block_tokens: int = 512

    def __post_init__(self) -> None:
        check_pages(self, "sink_tokens", "window_tokens", "budget_tokens", "query_block_tokens")
        check_at_least(self, 1, "keys_per_query")
        if self.span_tokens % 2 or not 2 <= self.span_tokens <= self.budget_tokens:
            raise ValueError(
                f"span_tokens is {self.span_tokens}; it must be even and at most"
                f" budget_tokens ({self.budget_tokens})"
            )


@dataclass(frozen=True, slots=True)
class InfLLMConfig:
    """Settings of the method `infllm`.

    Args:
        sink_tokens: first tokens that every query attends.
        window_tokens: last tokens that a query attends at their true distances.
        budget_tokens: tokens of the blocks retrieved for a block of queries, for all heads.
        block_tokens: tokens of a block; a multiple of 64.
        representatives: keys that stand for a block, per query head.
        query_block_tokens: queries that look up together while a document is read.
    """

    sink_tokens: int = 256
    window_tokens: int = 1024
    budget_tokens: int = 2048
    block_tokens: int = 128
    representatives: int = 4
    query_block_tokens: int = 512

    def __post_init__(self) -> None:
        check_pages(self, "sink_tokens", "window_tokens", "budget_tokens", "block_tokens")
        check_pages(self, "query_block_tokens")
        if self.budget_tokens < self.block_tokens:
            raise ValueError(
                f"budget_tokens is {self.budget_tokens}; it must hold a block of"
                f" {self.block_tokens} tokens"
            )
        if not 1 <= self.representatives <= self.block_tokens:
            raise ValueError(
                f"representatives is {self.representatives}; it must be 1 to {self.block_tokens}"
            )


@dataclass(frozen=True, slots=True)
class InfiniConfig:
    """Settings of the method `infini`.

    Args:
        segment_tokens: tokens that attend one another; as the model was trained.
        delta_rule: 1 to store only what the memory does not recall already, 0 for whole values.
    """

    segment_tokens: int = 2048
    delta_rule: int = 1

    def __post_init__(self) -> None:
        check_pages(self, "segment_tokens")
        if self.delta_rule not in (0, 1):
            raise ValueError(f"delta_rule is {self.delta_rule}; it must be 0 or 1")


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
