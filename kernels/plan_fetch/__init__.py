"""Which wanted pages stand in no slot of their KV head, and which slots they are to take."""

from __future__ import annotations

import torch

from ..backends import implementation
from ..checks import require_dtype, require_same_device, require_shape, require_unit_stride
from ..types import QUARTERS, SlotTables

# Wanted pages, and slots, that a program of the Triton backend holds.
MOST = 8192
# Of a slot with all values of its page: its quarters as one int32.
WHOLE = 0x01010101


def plan_fetch_(
    tables: SlotTables, wanted: torch.Tensor, *, keys_only: bool = False, backend: str = "auto"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Give every wanted page a slot, in place; those that have one keep it.

    What makes way is the page that was wanted longest ago, of two such the one in the lower slot;
    pages before `tables.kept[0]` and from `tables.kept[1]` on stay. The caller sees to it that
    these and the wanted ones fit the slots together: where they do not, a page gets no slot.
    Nothing waits for the device and every shape is fixed, so a CUDA graph can hold it.

    Args:
        tables: of some KV heads, rows.
        wanted: int32 [rows, n] logical pages, -1 for none, in any order, maybe repeated.
        keys_only: values are not wanted: a page that gets a slot has none of them there. Otherwise
            a page whose slot lacks some is to be fetched too, to where it is.
        backend: a name of BACKENDS, or "auto".

    Returns:
        pages and slots int32 [rows, n]: what is to be fetched whereto, -1 for nothing to do.

    Raises:
        ValueError, TypeError: a shape, dtype or device does not fit.
        NotImplementedError: more wanted pages or slots than a program of Triton holds.
    """
    _check(tables, wanted, "wanted")
    run = implementation("plan_fetch", backend, wanted.device, "plan_fetch_")
    return run(tables, wanted, keys_only)


def plan_values_(
    tables: SlotTables, quarters: torch.Tensor, *, backend: str = "auto"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Which quarters of values are to come to the slots that lack them, in place.

    Nobody makes way and nothing counts as wanted: the pages have slots since they were wanted for
    their keys. A page without one is left out. Nothing waits for the device and every shape is
    fixed, so a CUDA graph can hold it.

    Args:
        tables: of some KV heads, rows.
        quarters: int32 [rows, n], logical page * QUARTERS + quarter, -1 for none, in any order.
        backend: a name of BACKENDS, or "auto".

    Returns:
        quarters and slots int32 [rows, n]: what is to be fetched whereto, -1 for nothing to do;
        what is listed twice may be there twice.

    Raises:
        ValueError, TypeError: a shape, dtype or device does not fit.
        NotImplementedError: more quarters than a program of Triton holds.
    """
    _check(tables, quarters, "quarters")
    run = implementation("plan_fetch", backend, quarters.device, "plan_values_")
    return run(tables, quarters)


def _check(tables: SlotTables, listed: torch.Tensor, name: str) -> None:
    """Check tables, and what is listed for their rows."""
    rows = len(tables.owners)
    require_shape("tables.pages", tables.pages, (rows, None))
    require_shape("tables.owners", tables.owners, (rows, None))
    require_shape("tables.stamps", tables.stamps, tables.owners.shape)
    require_shape("tables.values", tables.values, (*tables.owners.shape, QUARTERS))
    require_shape("tables.clock", tables.clock, (1,))
    require_shape("tables.kept", tables.kept, (2,))
    require_shape("tables.counts", tables.counts, (3,))
    require_shape(name, listed, (rows, None))
    whole = {name: getattr(tables, name) for name in ("pages", "owners", "stamps", "clock", "kept")}
    whole[name] = listed
    for label, tensor in whole.items():
        require_dtype(label, tensor, (torch.int32,))
        require_unit_stride(label, tensor)
    require_dtype("tables.values", tables.values, (torch.uint8,))
    if tables.values.stride()[1:] != (QUARTERS, 1):
        raise ValueError("tables.values: the quarters of a row's slots must follow one another")
    require_dtype("tables.counts", tables.counts, (torch.int64,))
    require_same_device(counts=tables.counts, values=tables.values, **whole)
