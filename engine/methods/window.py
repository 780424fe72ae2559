"""Sinks and a window, nothing between them, at packed positions.

Source: StreamingLLM (arXiv 2309.17453).
"""

from dataclasses import dataclass, field

from hipcli.engine.methods.base import Unselective
from hipcli.engine.methods.configs import WindowConfig
from hipcli.engine.methods.geometry import Geometry


@dataclass(slots=True)
class WindowMethod(Unselective):
    """See the module."""

    config: WindowConfig = field(default_factory=WindowConfig)
    name: str = "window"
    block_size_k: int = 64

    @property
    def geometry(self) -> Geometry:
        return Geometry(self.config.sink_tokens, self.config.window_tokens, dense_tokens=0)
