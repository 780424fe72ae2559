"""Every query attends every key, at its true position: exact inside the trained window."""

from dataclasses import dataclass, field

import torch

from hipcli.engine.methods.base import Geometry
from hipcli.engine.methods.configs import DenseConfig
from hipcli.engine.step import StepInput


@dataclass(slots=True)
class DenseMethod:
    """See the module."""

    config: DenseConfig = field(default_factory=DenseConfig)
    name: str = "dense"
    block_size_k: int = 64

    @property
    def geometry(self) -> Geometry:
        return Geometry(sink_tokens=0, window_tokens=64, dense_tokens=1 << 62)

    def reset(self) -> None:
        """Nothing to forget."""

    def select_prefill(
        self, layer: int, q: torch.Tensor, window_starts: list[int], step: StepInput
    ) -> None:
        return None

    def select_token(self, layer: int, q: torch.Tensor, step: StepInput) -> None:
        return None
