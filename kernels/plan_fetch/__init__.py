"""Which wanted pages stand in no slot of their KV head, and which slots they are to take."""

from __future__ import annotations

import torch

from ..backends import implementation
from ..checks import require_dtype, require_same_device, require_shape, require_unit_stride
from ..types import SlotTables

# Wanted pages, and slots, that a program of the Triton backend holds.
MOST = 8192


def plan_fetch_(
    tables: SlotTables, wanted: torch.Tensor, *, backend: str = "auto"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Give every wanted page a slot, in place; those that have one keep it.

    What makes way is the page that was wanted longest ago, of two such the one in the lower slot;
    pages before `tables.kept[0]` and from `tables.kept[1]` on stay. The caller sees to it that
    these and the wanted ones fit the slots together: where they do not, a page gets no slot.
    Nothing waits for the device and every shape is fixed, so a CUDA graph can hold it.

    Args:
        tables: of some KV heads, rows.
        wanted: int32 [rows, n] logical pages, -1 for none, in any order, maybe repeated.
        backend: a name of BACKENDS, or "auto".

    Returns:
        pages and slots int32 [rows, n]: what is to be fetched whereto, -1 for nothing to do.

    Raises:
        ValueError, TypeError: a shape, dtype or device does not fit.
        NotImplementedError: more wanted pages or slots than a program of Triton holds.
    """
    rows = len(tables.owners)
    require_shape("tables.pages", tables.pages, (rows, None))
    require_shape("tables.owners", tables.owners, (rows, None))
    require_shape("tables.stamps", tables.stamps, tables.owners.shape)
    require_shape("tables.clock", tables.clock, (1,))
    require_shape("tables.kept", tables.kept, (2,))
    require_shape("tables.counts", tables.counts, (2,))
    require_shape("wanted", wanted, (rows, None))
    whole = {name: getattr(tables, name) for name in ("pages", "owners", "stamps", "clock", "kept")}
    for name, tensor in (*whole.items(), ("wanted", wanted)):
        require_dtype(name, tensor, (torch.int32,))
        require_unit_stride(name, tensor)
    require_dtype("tables.counts", tables.counts, (torch.int64,))
    require_same_device(wanted=wanted, counts=tables.counts, **whole)
    run = implementation("plan_fetch", backend, wanted.device, "plan_fetch_")
    return run(tables, wanted)
