"""What a machine and its user leave for keys and values on a GPU, beside it and on the disk."""

import torch

from hipcli.engine.config import EngineConfig
from hipcli.engine.device import GPU_MIN_CHUNK_TOKENS, free_bytes
from hipcli.engine.methods.base import Method
from hipcli.engine.methods.geometry import SPARE_PAGES
from hipcli.engine.passes.tiers import least_room
from hipcli.engine.resident import resident_bytes
from hipcli.engine.store.layout import PAGE_TOKENS, KVLayout, num_pages
from hipcli.engine.store.limits import HostLimit
from hipcli.engine.store.tiers import TierLimits, TierPlan, plan_tiers

# Kept free of a device whose memory nobody limits, for what is computed on the way.
WORKSPACE_BYTES = 1 << 30
# Pages that an answer may be given, where the method does not say.
BUDGET_TOKENS = 2048


def near_pages(method: Method) -> int:
    """Sinks, window and what one fetch may want: pages that a pass needs besides its own."""
    geometry = method.geometry
    room = least_room(method, getattr(method.config, "budget_tokens", BUDGET_TOKENS))
    near = num_pages(geometry.sink_tokens) + num_pages(geometry.window_tokens) + 1
    return near + room + SPARE_PAGES


def least_slots(method: Method) -> int:
    """Pages of a KV head that a device must hold at once."""
    return near_pages(method) + GPU_MIN_CHUNK_TOKENS // PAGE_TOKENS


class Tiering:
    """Plans the stores of one model on one GPU.

    Args:
        config: with the user's limits.
        method: whose passes the stores are for.
        weights_bytes: of the model.
        device: where it is.
    """

    def __init__(
        self, config: EngineConfig, method: Method, weights_bytes: int, device: torch.device
    ) -> None:
        self._config, self._weights_bytes, self._device = config, weights_bytes, device
        self._least = least_slots(method)
        self._near = near_pages(method)

    def plan(self, layout: KVLayout, capacity_tokens: int) -> TierPlan | None:
        """See `plan_tiers`."""
        free = free_bytes(self._device)
        allowed = self._config.gpu_memory_bytes - self._weights_bytes
        room = min(free, allowed) if self._config.gpu_memory_bytes else free
        if layout.num_bytes(capacity_tokens) <= room:
            return None
        room = min(room, free - WORKSPACE_BYTES)
        host = HostLimit.of(self._config.host_memory_bytes, self._config.models_dir)
        # --host-memory is for what lies there, and not for what CUDA maps into the process.
        host_bytes = self._config.host_memory_bytes
        if not host_bytes:
            host_bytes = 1 << 62 if host is None else host.num_bytes - resident_bytes()
        return plan_tiers(layout, capacity_tokens, TierLimits(room, host, host_bytes, self._least))

    def chunk_tokens(self, plan: TierPlan) -> int:
        """Most tokens of a pass that leave room in the slots for what they attend."""
        return max(plan.slots - self._near, 1) * PAGE_TOKENS
