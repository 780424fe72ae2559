"""A store with some of another one's pages, in memory."""

from collections.abc import Callable

import numpy as np
import torch

from hipcli.engine.store.pages import PAGE_TOKENS, KVStore, num_pages

# Pages copied in one go.
PIECE_PAGES = 256


def kept_copy(
    store: KVStore, pages: np.ndarray, capacity_tokens: int, ready: Callable[[KVStore], None]
) -> KVStore:
    """A new store that holds these pages side by side.

    Args:
        store: holds a context and nothing behind it.
        pages: int64, ascending; the last page of the context is among them.
        capacity_tokens: of the new store.
        ready: called with the new store while it is empty.
    """
    copy = store.empty(capacity_tokens)
    ready(copy)
    index = torch.from_numpy(pages)
    with torch.inference_mode():
        for layer in range(store.layout.num_layers):
            _copy_layer(store, copy, layer, index)
    copy.length = store.length - (num_pages(store.length) - len(pages)) * PAGE_TOKENS
    copy.kept_pages = pages
    return copy


def _copy_layer(store: KVStore, copy: KVStore, layer: int, index: torch.Tensor) -> None:
    store.check_attended(layer, None, 1, 0, 0)
    source, target = store.index[layer].summaries, copy.index[layer].summaries
    target[:, : len(index)] = source[:, index.to(source.device)]
    for first in range(0, len(index), PIECE_PAGES):
        piece = index[first : first + PIECE_PAGES]
        copy.put(layer, first, *store.picked(layer, piece))
        # Both stores answer for the same limit.
        store.relieve()
        copy.relieve()
