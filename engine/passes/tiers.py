"""What a pass attends in a tiered store: brought to the device as far as there is room.

In a store whose pages are all on the device nothing here does anything.
"""

from collections.abc import Iterator

import torch

from hipcli.engine.errors import DoesNotFitError, UsageError
from hipcli.engine.forward.step import StepInput
from hipcli.engine.methods.base import Method
from hipcli.engine.store.pages import PAGE_TOKENS, KVStore

# Methods that attend a context of which a part is on the device.
TIERED_METHODS = ("hip", "quest", "window", "dense")


def check_method(method: Method, store: KVStore) -> None:
    """Raise UsageError where a method needs all of a context on the device and it is not there."""
    if store.tiered and not method.reads_tiers:
        raise UsageError(
            f"--method {method.name} reads keys and values wherever they are, and those of this"
            " context do not fit the device",
            f"use --method {', '.join(TIERED_METHODS)}; or a larger --gpu-memory, if there is one",
        )


def least_room(method: Method, budget_tokens: int) -> int:
    """Pages of a KV head that have to fit the device at once, besides sinks and windows.

    Args:
        method: selects.
        budget_tokens: of the pages that an answer may be given.
    """
    reading = getattr(method.config, "prefill_budget_tokens", 0) // PAGE_TOKENS
    return max(1, method.token_pages, reading, budget_tokens // PAGE_TOKENS)


def pages_of(blocks: torch.Tensor, block_size_k: int) -> torch.Tensor:
    """The pages that blocks lie in, int32 of the same shape; -1 stays -1."""
    # Rounded down, not towards zero.
    return torch.div(blocks, PAGE_TOKENS // block_size_k, rounding_mode="floor")


def fetched(
    step: StepInput, layer: int, pages: torch.Tensor, *, count: bool = False
) -> Iterator[slice]:
    """Queries whose pages are on the device, until the next ones are asked for.

    Args:
        step: the pass; all queries come at once where everything is on the device.
        layer: which layer.
        pages: int32 [N, num_kv_heads, n], for each query or block of queries, -1 for none.
        count: count how many different pages they are, which waits for the device, before they
            are taken in pieces. Without, they count as if no two queries shared one.

    Yields:
        slices of the N, in order.

    Raises:
        DoesNotFitError: the pages of one query are more than there is room for.
    """
    (queries, _, most), store = pages.shape, step.store
    if not step.fetches or not most:
        yield slice(0, queries)
        return
    together = max(1, store.room // most)
    if queries > together and count and _different(pages) <= store.room:
        together = queries
    if most > store.room and _different(pages[:1]) > store.room:
        raise DoesNotFitError(
            f"a query attends up to {most} pages of 64 tokens besides its window, and the device"
            f" has room for {store.room}",
            "raise --gpu-memory, or lower the method's budget",
        )
    for low in range(0, queries, together):
        rows = slice(low, min(low + together, queries))
        store.fetch(layer, pages[rows])
        yield rows


def _different(pages: torch.Tensor) -> int:
    """Most different pages of any KV head in [N, num_kv_heads, n]."""
    rows = pages.transpose(0, 1).flatten(1).sort(1).values
    new = torch.ones_like(rows, dtype=torch.bool)
    new[:, 1:] = rows[:, 1:] != rows[:, :-1]
    return int((new & (rows >= 0)).sum(1).max())
