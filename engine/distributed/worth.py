"""What each page is worth keeping (`engine/reading/worth.py`), from pages that lie on all ranks.

Keys stay where they are: their sums and products are added up over ranks, and every page is
weighed by its owner. Every page tells of mean and spread here, not a sample of them.
"""

import torch

from hipcli.engine.distributed.group import Group
from hipcli.engine.distributed.store import ShardStore
from hipcli.engine.reading.worth import LAYER_STEP, PIECE_PAGES, UNUSUAL_TOKENS, whitened
from hipcli.engine.store.layout import PAGE_TOKENS, num_pages
from hipcli.kernels.paging import dequantise

PURPOSE = "worth"


@torch.inference_mode()
def shard_worth(group: Group, store: ShardStore) -> list[float]:
    """As `page_worth`, on every rank for all pages; collective."""
    full = store.length // PAGE_TOKENS
    worth = torch.zeros(num_pages(store.length))
    if full < 2:
        return [float(value) for value in worth]
    own = store.placement.own(0, full)
    total = torch.zeros(full, device=store.device)
    for layer in range(0, store.layout.num_layers, LAYER_STEP):
        store.check_keys(layer, own)
        total += _layer_worth(group, store, layer, own, full)
    worth[:full] = total.cpu()
    return [float(value) for value in worth]


def _layer_worth(
    group: Group, store: ShardStore, layer: int, own: torch.Tensor, full: int
) -> torch.Tensor:
    """fp32 [full], as in `engine/reading/worth.py`."""
    count = full * PAGE_TOKENS
    heads, width = store.layout.num_kv_heads, store.layout.head_dim

    def keys(first: int) -> torch.Tensor:
        pages = own[first : first + PIECE_PAGES].to(store.device)
        rows, scales = store.rows_of_own(layer, pages)
        if scales is None:
            return rows[:, 0].float()
        return dequantise(rows[:, 0], scales[:, 0], store.layout.dtype).float()

    pieces = range(0, len(own), PIECE_PAGES)
    total = torch.zeros(heads, 1, width, device=store.device)
    for first in pieces:
        total += keys(first).sum((0, 2)).unsqueeze(1)
    mean = group.gather(total, PURPOSE).sum(0) / count
    products = torch.zeros(heads, width, width, device=store.device)
    for first in pieces:
        centred = (keys(first) - mean).transpose(0, 1).flatten(1, 2)
        products += centred.transpose(1, 2) @ centred
    whitening = whitened(group.gather(products, PURPOSE).sum(0) / count)
    moments = torch.zeros(2, heads, device=store.device)
    # [full, heads]: what the unusual tokens of each own page are worth, 0 elsewhere.
    found = torch.zeros(full, heads, device=store.device)
    for first in pieces:
        far = ((keys(first) - mean) @ whitening).square().sum(-1)
        places = own[first : first + PIECE_PAGES].to(store.device)
        found[places] = far.topk(UNUSUAL_TOKENS, dim=-1).values.mean(-1)
        moments += torch.stack((far.sum((0, 2)), far.square().sum((0, 2))))
    found = group.gather(found, PURPOSE).sum(0)
    sums, squares = group.gather(moments, PURPOSE).sum(0)
    average = sums / count
    deviation = (squares / count - average.square()).clamp_(min=1e-12).sqrt()
    return ((found - average) / deviation).mean(1)
