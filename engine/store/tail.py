"""The end of a store at one moment, and what a method keeps beside the pages of one context."""

from dataclasses import dataclass
from typing import Protocol

import torch


class Companion(Protocol):
    """What a method knows of a context besides its keys and values; it goes where they go."""

    def copy(self) -> "Companion":
        """As it is now, untouched by what is read later."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """All of it by name, for the files of a session."""


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a store.

    Args:
        length: tokens in it.
        pages: per layer the last page, [2, num_kv_heads, page_size, head_dim].
        scales: per layer those of the last page, None where pages are not quantised.
        companion: what the method kept beside the pages.
    """

    length: int
    pages: list[torch.Tensor]
    scales: list[torch.Tensor | None]
    companion: Companion | None = None
