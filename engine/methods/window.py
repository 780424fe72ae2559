"""Sinks and a window, nothing between them, at packed positions.

Source: StreamingLLM (arXiv 2309.17453).
"""

from dataclasses import dataclass, field

import torch

from hipcli.engine.methods.base import Geometry
from hipcli.engine.methods.configs import WindowConfig
from hipcli.engine.step import StepInput


@dataclass(slots=True)
class WindowMethod:
    """See the module."""

    config: WindowConfig = field(default_factory=WindowConfig)
    name: str = "window"
    block_size_k: int = 64

    @property
    def geometry(self) -> Geometry:
        return Geometry(self.config.sink_tokens, self.config.window_tokens, dense_tokens=0)

    def reset(self) -> None:
        """Nothing to forget."""

    def select_prefill(
        self, layer: int, q: torch.Tensor, window_starts: list[int], step: StepInput
    ) -> None:
        return None

    def select_token(self, layer: int, q: torch.Tensor, step: StepInput) -> None:
        return None
