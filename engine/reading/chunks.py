"""A context read through the model, chunk by chunk."""

from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np
import torch

from hipcli.engine.device import is_out_of_memory
from hipcli.engine.events import Event, Notice, Phase, Progress
from hipcli.engine.forward.runner import Runner
from hipcli.engine.forward.step import StepInput
from hipcli.engine.methods.base import Method
from hipcli.engine.passes import PrefillPass
from hipcli.engine.reading.pace import Pace
from hipcli.engine.store.pages import PAGE_TOKENS, KVStore
from hipcli.engine.store.shares import shares_of


@dataclass(frozen=True, slots=True)
class Chunks:
    """Reads one context.

    Args:
        runner: the model.
        method: selects while reading.
        context_ids: int32 [N].
        chunk_tokens: tokens per forward pass, fewer where a GPU runs out of memory.
    """

    runner: Runner
    method: Method
    context_ids: np.ndarray
    chunk_tokens: int

    def read(
        self,
        store: KVStore,
        start: int,
        save: Callable[[int, int], Notice | None],
        saved: Callable[[], bool],
    ) -> Generator[Event, None, None]:
        """Run the context from `start` on through the model.

        Args:
            store: holds the tokens before `start`.
            start: on the grid of pages.
            save: called with the tokens [start, end) of each chunk once they are in the store; what
                it returns is told.
            saved: a session has what was read so far.
        """
        ids = torch.from_numpy(self.context_ids.astype(np.int64))
        total, first, chunk = len(ids), start, self.chunk_tokens
        attention = PrefillPass(self.method)
        yield Phase("prefill")
        pace = Pace(start, total)
        yield self._progress(store, start, first, pace, saved())
        while start < total:
            end = min(start + chunk, total)
            step = StepInput(store, self.runner.tables, attention, start)
            if not self._forward(ids[start:end], step):
                torch.cuda.empty_cache()
                chunk = max(chunk // (2 * PAGE_TOKENS), 1) * PAGE_TOKENS
                what = "the GPU ran out of memory: reading goes on in shorter chunks"
                yield Notice("shorter_chunks", f"{what} ({chunk:,} tokens)")
                continue
            notice = save(start, end)
            if notice is not None:
                yield notice
            start = end
            pace.advance(end)
            yield self._progress(store, end, first, pace, saved())

    def _forward(self, ids: torch.Tensor, step: StepInput) -> bool:
        """Read a chunk; False if it has to be a shorter one for the memory of the GPU."""
        own = self.method.own_attention
        try:
            self.runner.forward(ids, step)
        except RuntimeError as error:
            # A state that has taken in a part of the chunk would take it in again.
            taken_in = own is not None and own.keeps_state
            if len(ids) <= PAGE_TOKENS or taken_in or not is_out_of_memory(error):
                raise
            return False
        return True

    def _progress(
        self, store: KVStore, done: int, cached: int, pace: Pace, saved: bool
    ) -> Progress:
        on_gpu = self.runner.device.type == "cuda"
        shares = shares_of(store, done, done if saved else 0, on_gpu=on_gpu)
        return Progress(
            phase="prefill",
            done_tokens=done,
            cached_tokens=cached,
            total_tokens=len(self.context_ids),
            tokens_per_s=pace.tokens_per_s,
            eta_s=pace.eta_s,
            kv_device_bytes=shares.device_bytes,
            kv_host_bytes=shares.host_bytes,
            kv_disk_bytes=shares.disk_bytes,
            saved=saved,
        )
