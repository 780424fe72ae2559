"""A layer's pages on their way through a device, a piece after the other."""

from collections.abc import Iterator

import torch

from hipcli.engine.store.behind import Behind
from hipcli.engine.store.layout import KVLayout
from hipcli.engine.store.memory import contents, paged_kv, scales_of
from hipcli.engine.store.tiers import PIECE_PAGES, PIECES
from hipcli.kernels.fetch_pages import fetch_pages_
from hipcli.kernels.types import HostPages


class Stream:
    """Brings pieces to the device, one while the one before it is read.

    Args:
        layout: of the pages.
        capacity: pages a layer.
        device: where to.
        behind: where from.
        backend: of the kernels.

    Attributes:
        bytes_in: brought so far.
    """

    def __init__(
        self, layout: KVLayout, capacity: int, device: torch.device, behind: Behind, backend: str
    ) -> None:
        self._layout, self._device, self._behind, self._backend = layout, device, behind, backend
        self._shape = (min(PIECE_PAGES, capacity), layout.page_bytes)
        self._incoming = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._scratch: list[torch.Tensor] = []
        self.bytes_in = 0

    def pieces(
        self, layer: int, pages: tuple[int, int], through: int, values: bool
    ) -> Iterator[tuple[int, int, torch.Tensor]]:
        """Pages [first, last) of a layer in pieces.

        Args:
            layer: which layer.
            pages: first and last.
            through: pages from here on are not behind the device yet: whoever takes a piece fills
                them in.
            values: bring them too; without, the records have what an earlier piece left there.

        Yields:
            first page, the page behind the last one, and their records uint8 [n, page_bytes] on
            the device, which the next piece but one takes the place of.
        """
        first, last = pages
        starts = range(first, last, PIECE_PAGES)
        if not self._scratch:
            # Written to outside of a pass too.
            with torch.inference_mode(False):
                # At once: where there is room for one of them alone, the next try begins anew.
                self._scratch = [
                    torch.zeros(self._shape, dtype=torch.uint8, device=self._device)
                    for _ in range(PIECES)
                ]
        ends = [min(begin + PIECE_PAGES, last) for begin in starts]
        there = [(begin, min(end, through)) for begin, end in zip(starts, ends, strict=True)]
        coming = self._bring(layer, there[0], 0, values) if starts else None
        for turn, (begin, end) in enumerate(zip(starts, ends, strict=True)):
            event = coming
            if turn + 1 < len(starts):
                coming = self._bring(layer, there[turn + 1], turn + 1, values)
            if event is not None:
                torch.cuda.current_stream(self._device).wait_event(event)
            yield begin, end, self._scratch[turn % PIECES][: end - begin]

    def _bring(
        self, layer: int, pages: tuple[int, int], turn: int, values: bool
    ) -> "torch.cuda.Event | None":
        """Start copying pages to the device, beside what it computes."""
        rows, incoming, side = self._scratch[turn % PIECES], self._incoming, self._behind.side
        if incoming is None or side is None:
            self._copy(layer, pages, rows, values)
            return None
        # The piece that was in the same place has been asked for before this one.
        incoming.wait_stream(torch.cuda.current_stream(self._device))
        incoming.wait_stream(side)
        event = torch.cuda.Event()
        with torch.cuda.stream(incoming):
            self._copy(layer, pages, rows, values)
            event.record()
        return event

    def _copy(self, layer: int, pages: tuple[int, int], rows: torch.Tensor, values: bool) -> None:
        first, last = pages
        if first >= last:
            return
        slabs = self._behind.slabs
        if not values and slabs.all_readable:
            self._copy_keys(layer, pages, rows)
            return
        self.bytes_in += (last - first) * self._layout.page_bytes
        for begin, end in slabs.runs(first, last):
            target = rows[begin - first : end - first]
            if slabs.holds(begin):
                target.copy_(slabs.rows(layer, begin, end), non_blocking=True)
            else:
                target.copy_(self._behind.records(layer, torch.arange(begin, end)))

    def _copy_keys(self, layer: int, pages: tuple[int, int], rows: torch.Tensor) -> None:
        """Copy keys and scales by the kernel that fetches pages: what lies between them stays."""
        first, last = pages
        heads, layout = self._layout.num_kv_heads, self._layout
        self.bytes_in += (last - first) * (layout.page_bytes - layout.content_bytes // 2)
        wanted = torch.arange(first, last, dtype=torch.int32, device=self._device)
        kv = paged_kv(contents(rows, layout), scales_of(rows, layout), wanted)
        host = HostPages(self._behind.slabs.bases[layer], self._behind.slabs.slab_pages)
        moves = (x.expand(heads, -1).contiguous() for x in (wanted, wanted - first))
        fetch_pages_(kv, host, *moves, keys_only=True, backend=self._backend)
