"""Runners whose stores hold few pages on the device."""

from typing import Any

from hipcli.engine.forward.runner import Runner
from hipcli.engine.store.pages import KVStore, num_pages
from hipcli.engine.store.tiered_store import TieredStore
from hipcli.engine.store.tiers import TierPlan


class TieredRunner(Runner):
    """A runner of the device path on a CPU.

    Args:
        slots: pages of each layer that the device holds.
    """

    def __init__(self, model: Any, slots: int, **options: Any) -> None:
        super().__init__(model, **{"backend": "reference", **options})
        self.slots = slots

    def new_store(self, capacity_tokens: int) -> KVStore:
        plan = TierPlan(slots=self.slots, capacity_pages=num_pages(capacity_tokens))
        return TieredStore(self.layout, capacity_tokens, plan, self.backend, self.device)
