"""Every query attends every key, at true positions: exact inside the trained window."""

from dataclasses import dataclass, field

from hipcli.engine.methods.base import Unselective
from hipcli.engine.methods.configs import DenseConfig
from hipcli.engine.methods.geometry import Geometry


@dataclass(slots=True)
class DenseMethod(Unselective):
    """See the module."""

    config: DenseConfig = field(default_factory=DenseConfig)
    name: str = "dense"
    block_size_k: int = 64

    @property
    def geometry(self) -> Geometry:
        return Geometry(sink_tokens=0, window_tokens=64, dense_tokens=1 << 62)
