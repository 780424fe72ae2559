"""What each page of a context is worth keeping: how unlike all others its keys are.

Asked before any question is known, so the record must tell what a question may look for. Several
were tried (docs/log.md): the attention that pages receive while the text is read, the distance of
keys from their mean, rare words, and the distance in units of the keys' own spread (Mahalanobis).
Only the last one had every needle in noise, prose and code among the first tenth of the pages: what
stands out in the directions in which a head's keys hardly vary is what only this page says.

It is a function of the stored keys alone. So nothing is counted while the text is read, an
interrupted reading loses nothing, and a page taken over from another session needs no history.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch

from hipcli.engine.store.pages import PAGE_TOKENS, KVStore
from hipcli.kernels.paging import dequantise
from hipcli.kernels.types import PagedKV

# Every second layer is asked: measured, all of them rank needles no better.
LAYER_STEP = 2
# Pages whose keys tell a head's mean and spread, evenly spaced.
SAMPLE_PAGES = 1024
# Pages looked at in one go.
PIECE_PAGES = 256
# A page is worth what its most unusual tokens are worth together.
UNUSUAL_TOKENS = 8
# Directions with less of the spread than this count as having this much.
LEAST_SPREAD = 1e-3


@torch.inference_mode()
def page_worth(store: KVStore) -> np.ndarray:
    """The worth of each page of a store, fp32 [num_pages]; 0 for a last page that is not full.

    Args:
        store: holds a context and nothing behind it.

    Raises:
        DamagedSessionError: keys that came from a session's files are not what was written.
    """
    pages = store.length // PAGE_TOKENS
    worth = np.zeros(-(-store.length // PAGE_TOKENS), dtype=np.float32)
    if pages < 2:
        return worth
    total = torch.zeros(pages, device=store.device)
    for layer in range(0, store.layout.num_layers, LAYER_STEP):
        store.check_keys(layer)
        total += _layer_worth(store, layer, pages)
    worth[:pages] = total.cpu().numpy()
    return worth


def _layer_worth(store: KVStore, layer: int, pages: int) -> torch.Tensor:
    """fp32 [pages]: the mean over heads, in standard deviations of what a token is worth there."""
    step = -(-pages // SAMPLE_PAGES)
    # Head by head: together they would take 50 MiB several times over.
    spreads = []
    sample = _sample(store, layer, pages, step)
    for head in range(store.layout.num_kv_heads):
        spreads.append(_spread(sample(slice(head, head + 1)).transpose(0, 1).flatten(1, 2)))
    mean, whitening = (torch.cat(parts) for parts in zip(*spreads, strict=True))
    found = []
    sums = torch.zeros(len(mean), device=mean.device)
    squares = torch.zeros_like(sums)
    for keys in _runs(store, layer, pages):
        store.relieve()
        # [n, num_kv_heads, page_size]: squared distances in units of the spread.
        far = ((keys - mean) @ whitening).square().sum(-1)
        found.append(far.topk(UNUSUAL_TOKENS, dim=-1).values.mean(-1))
        sums += far.sum((0, 2))
        squares += far.square().sum((0, 2))
    count = pages * PAGE_TOKENS
    average = sums / count
    deviation = (squares / count - average.square()).clamp_(min=1e-12).sqrt()
    return ((torch.cat(found) - average) / deviation).mean(1)


def _spread(keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean [num_kv_heads, 1, head_dim] of keys fp32 [num_kv_heads, n, head_dim], and the matrices
    [num_kv_heads, head_dim, head_dim] that make their spread equal in all directions."""
    mean = keys.mean(1, keepdim=True)
    centred = keys - mean
    return mean, whitened(centred.transpose(1, 2) @ centred / keys.shape[1])


def whitened(covariance: torch.Tensor) -> torch.Tensor:
    """What makes a spread [num_kv_heads, head_dim, head_dim] equal in all directions."""
    spread, directions = torch.linalg.eigh(covariance)
    least = LEAST_SPREAD * spread[:, -1:].clamp(min=1e-12)
    return directions * spread.maximum(least).rsqrt().unsqueeze(1)


def _runs(store: KVStore, layer: int, pages: int) -> Iterator[torch.Tensor]:
    """Keys of the first pages in runs of at most `PIECE_PAGES`, as `_keys` gives them."""
    if not store.tiered:
        for low in range(0, pages, PIECE_PAGES):
            yield _keys(store, store.kv[layer], slice(low, min(low + PIECE_PAGES, pages)))
        return
    for first, kv in store.key_pieces(layer, 0, pages, values=False):
        there = min(len(kv.page_table), pages - first)
        for low in range(0, there, PIECE_PAGES):
            yield _keys(store, kv, kv.page_table[low : min(low + PIECE_PAGES, there)].long())


def _sample(store: KVStore, layer: int, pages: int, step: int) -> Callable[[slice], torch.Tensor]:
    """Every `step`-th of the first pages; called with the heads it gives their keys."""
    if not store.tiered:
        return lambda heads: _keys(store, store.kv[layer], slice(0, pages, step), heads)
    parts = [
        # From the piece's first multiple of `step` on.
        _keys(store, kv, kv.page_table[: pages - first][-first % step :: step].long())
        for first, kv in store.key_pieces(layer, 0, pages, values=False)
    ]
    sample = torch.cat(parts)
    return lambda heads: sample[:, heads]


def _keys(
    store: KVStore, kv: PagedKV, slots: slice | torch.Tensor, heads: slice = slice(None)
) -> torch.Tensor:
    """Keys in some slots, all heads or some: fp32 [n, num_kv_heads, page_size, head_dim]."""
    keys = kv.k_pages[slots][:, heads]
    if kv.k_scales is not None:
        keys = dequantise(keys, kv.k_scales[slots][:, heads], store.layout.dtype)
    return keys.float()
