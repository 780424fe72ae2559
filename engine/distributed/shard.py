"""One rank's part of all work: the commands that every rank performs at the same time.

Rank 0 sends a command and performs it too; at its end all ranks tell each other how it went, so
that what goes wrong on one of them is an error on rank 0 and nothing that others wait for.
"""

import contextlib
import json
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

import torch

from hipcli.engine.device import is_out_of_memory, memory_errors
from hipcli.engine.distributed.attending import ShardStep
from hipcli.engine.distributed.choosing import Chooser
from hipcli.engine.distributed.group import Group
from hipcli.engine.distributed.passes import (
    ShardAnswer,
    ShardAttention,
    ShardReading,
    ShardUnvoted,
)
from hipcli.engine.distributed.placement import Placement
from hipcli.engine.distributed.question import Poll, ShardQuestion
from hipcli.engine.distributed.store import ShardStore, ShardTail
from hipcli.engine.distributed.worth import shard_worth
from hipcli.engine.errors import DamagedSessionError, DoesNotFitError, HipError
from hipcli.engine.forward.runner import Runner
from hipcli.engine.forward.step import KeysWritten
from hipcli.engine.methods.base import Method
from hipcli.engine.passes.given import GivenPages

# Room for how a command went on one rank: a short message.
STATUS_BYTES = 4096
STATUS = "status"
# What may go wrong on one rank while the others come through, and how it is raised on rank 0.
ERRORS: dict[str, Callable[..., Exception]] = {
    "DamagedSessionError": DamagedSessionError,
    "DoesNotFitError": DoesNotFitError,
    "HipError": HipError,
}

Record = dict[str, Any]


class Shard:
    """See the module.

    Args:
        runner: the model, the same on all ranks.
        method: the attention method.
        group: all ranks.
        stores: where stores are kept by their handles.
        words: ranks that tell each other how a command went: on the host, which then waits for no
            device; None for `group`.
    """

    def __init__(
        self,
        runner: Runner,
        method: Method,
        group: Group,
        stores: MutableMapping[int, ShardStore] | None = None,
        words: Group | None = None,
    ) -> None:
        self.runner = runner
        self.method = method
        self.group = group
        self._words = words
        self.stores: MutableMapping[int, ShardStore] = {} if stores is None else stores
        self.passes: dict[int, ShardAttention] = {}
        self.tails: dict[int, ShardTail] = {}
        module = runner.model.model.layers[0].self_attn
        self._scale = getattr(module, "scaling", runner.layout.head_dim**-0.5)
        self._commands: dict[str, Callable[..., Any]] = {
            "open": self._open,
            "map": self._map,
            "read": self._read,
            "tokens": self._tokens,
            "pass": self._pass,
            "tail": self._tail,
            "rewind": self._rewind,
            "save": self._save,
            "flush": self._flush,
            "worth": self._worth,
            "picked": self._picked,
            "reserve": self._reserve,
            "move": self._move,
            "traffic": self._traffic,
        }

    def perform(self, record: Record) -> Any:
        """Do what a record says, with all ranks.

        Returns:
            the result, of use on rank 0.

        Raises:
            HipError, OSError: on rank 0, what went wrong on any rank. Others carry on.
            DoesNotFitError: this rank ran out of memory on the way; it can be in step with the
                others no more.
        """
        for handle in record.pop("dropped", ()):
            for kept in (self.stores, self.passes, self.tails):
                kept.pop(handle, None)
        result, error = None, None
        try:
            result = self._commands[record.pop("command")](**record)
        except (HipError, OSError) as raised:
            if getattr(raised, "lost", False):
                raise
            error = raised
        except RuntimeError as raised:
            if not is_out_of_memory(raised):
                raise
            raise self._short() from raised
        store = self.stores.get(record.get("store", -1))
        if store is not None and store.trouble is not None:
            error, store.trouble = store.trouble, None
        self._settle(error)
        return result

    def _short(self) -> DoesNotFitError:
        return DoesNotFitError(
            f"rank {self.group.rank} ran out of memory on {self.runner.device}",
            "spread the context over more ranks, ask about less text, or use a smaller model",
        )

    def _settle(self, error: HipError | OSError | None) -> None:
        """Tell all ranks how a command went."""
        status = torch.zeros(STATUS_BYTES, dtype=torch.uint8)
        if error is not None:
            raw = _described(error)
            status[: len(raw)] = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
        if self._words is None:
            everyone = self.group.gather(status.to(self.runner.device), STATUS).cpu()
        else:
            everyone = self._words.gather(status, STATUS)
        if self.group.rank:
            return
        if error is not None:
            raise error
        for row in everyone:
            if row[0]:
                raise _raised(bytes(row.numpy()).rstrip(b"\0"))

    def _open(self, store: int, capacity_tokens: int, owners: list[int]) -> ShardStore:
        placement = Placement.of(owners, self.group.rank, self.group.size)
        runner = self.runner
        # Nobody waits in the middle of this, so all ranks end it together.
        with memory_errors(self._short):
            made = self.new_store(
                store, runner.layout, capacity_tokens, runner.backend, runner.device, placement
            )
        self.stores[store] = made
        return made

    def new_store(self, handle: int, *arguments: Any) -> ShardStore:
        """A store by its handle; rank 0 makes one that commands the others."""
        return ShardStore(*arguments)

    def _map(
        self, store: int, folder: str, file_tokens: int, tokens: int, seed: int, shared: bool
    ) -> None:
        path = Path(folder)
        if not path.is_dir():
            raise HipError(
                f"rank {self.group.rank} does not see the session's folder {folder}",
                "put --cache-dir on a file system that all hosts share, or use --no-cache",
            )
        self.stores[store].map_own(path, file_tokens, tokens, seed, shared=shared)

    def _step(self, store: int, start: int, tokens: int, attention: Any, apart: bool) -> ShardStep:
        return ShardStep(
            self.group,
            self.stores[store],
            self.runner.tables,
            attention,
            start,
            tokens,
            self._scale,
            apart,
        )

    @torch.inference_mode()
    def _read(self, store: int, start: int, ids: list[int]) -> None:
        """Tokens of a document: each rank those of its own pages."""
        reading = ShardReading(self.method, Chooser(self.method))
        step: Any = self._step(store, start, len(ids), reading, True)
        mine = self.stores[store].placement.tokens(start, step.end)[self.group.rank]
        if len(mine):
            self.runner.forward(torch.tensor(ids)[mine], step)
        else:
            self._keep_pace(reading, step)
        self.stores[store].length = step.end

    def _keep_pace(self, reading: ShardReading, step: ShardStep) -> None:
        """Attend for the others in a pass that has no token of this rank's."""
        layout, runner = self.runner.layout, self.runner
        shape = (0, runner.num_heads, layout.head_dim)
        q = torch.empty(shape, dtype=runner.dtype, device=runner.device)
        step.keys_only = True
        with contextlib.suppress(KeysWritten):
            for layer in range(layout.num_layers):
                reading.attend(layer, q, step)

    def _tokens(
        self, store: int, start: int, ids: list[int], attention: int, keep: int
    ) -> torch.Tensor | None:
        """Tokens that all ranks run alike; rank 0 returns logits."""
        step: Any = self._step(store, start, len(ids), self.passes[attention], False)
        if self.group.rank == 0:
            return self.runner.logits(torch.tensor(ids), step, keep=keep)
        self.runner.forward(torch.tensor(ids), step)
        return None

    def _pass(self, handle: int, kind: str, **made: Any) -> None:
        """A new pass for `tokens`: question, unvoted or answer."""
        chooser, device = Chooser(self.method), self.runner.device
        if kind == "question":
            weights = made.pop("head_weights")
            counted = None if weights is None else torch.tensor(weights, device=device)
            words = tuple(made.pop("own_words"))
            poll = Poll(own_words=words, head_weights=counted, **made)
            self.passes[handle] = ShardQuestion(self.method, chooser, poll)
        elif kind == "unvoted":
            words = tuple(made["own_words"])
            self.passes[handle] = ShardUnvoted(self.method, chooser, words)
        else:
            given = None
            if made["pages"] is not None:
                pages = torch.tensor(made["pages"], dtype=torch.long, device=device)
                given = GivenPages(pages, made["before_page"])
            self.passes[handle] = ShardAnswer(self.method, chooser, given)

    def _tail(self, store: int, handle: int) -> None:
        self.tails[handle] = self.stores[store].tail_own()

    def _rewind(self, store: int, handle: int) -> None:
        self.stores[store].rewind_own(self.tails[handle])

    def _save(self, store: int, start: int, end: int) -> int:
        return self.stores[store].save_own(start, end)

    def _flush(self, store: int) -> None:
        self.stores[store].flush_own()

    def _worth(self, store: int) -> list[float]:
        return shard_worth(self.group, self.stores[store])

    def _picked(
        self, store: int, layer: int, pages: list[int]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Pages of all ranks on rank 0."""
        return self.stores[store].picked_by(self.group, layer, pages, 0)

    def _reserve(self, store: int, pages: list[int], to: int) -> None:
        with memory_errors(self._short):
            self.stores[store].reserve_slots(pages, to)

    def _move(self, store: int, pages: list[int], to: int) -> None:
        self.stores[store].move(self.group, pages, to)

    def _traffic(self) -> dict[str, int]:
        """Bytes sent by all ranks since the last time, by purpose; rank 0 returns them."""
        mine, purposes = self.group.sent_bytes, ("queries", "partials", "selection", "votes")
        counts = torch.tensor([mine[name] for name in purposes], device=self.runner.device)
        total = self.group.gather(counts, STATUS).sum(0).tolist()
        mine.clear()
        return dict(zip(purposes, total, strict=True))


def _described(error: HipError | OSError) -> bytes:
    """An error as JSON that fits a status."""
    record: Record = {"kind": type(error).__name__, "message": str(error), "hint": ""}
    if isinstance(error, HipError):
        record["hint"] = error.hint
        if record["kind"] not in ERRORS:
            record["kind"] = "HipError"
    else:
        record |= {"kind": "OSError", "errno": error.errno or 0, "message": error.strerror or ""}
    for name in ("message", "hint"):
        # Escaped, a character takes up to twelve bytes.
        record[name] = record[name][: STATUS_BYTES // 32]
    return json.dumps(record).encode("ascii")


def _raised(raw: bytes) -> Exception:
    """The error behind a status."""
    record = json.loads(raw)
    if record["kind"] == "OSError":
        return OSError(record["errno"], record["message"])
    return ERRORS[record["kind"]](record["message"], record["hint"])
