"""Tables of speed for a machine that is known by its data sheet alone.

A table is what profiling would give; here it is a roofline: the slower of memory and arithmetic,
each at a stated part of its peak, and what tensor parallelism adds in messages.
"""

from dataclasses import dataclass

from hipcli.engine.pool.performance import PerformanceModel, Table

_BATCHES = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096, 8192)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model as far as its speed goes; weights, keys and values in 16 bits.

    Args:
        name: for people.
        layers, hidden, heads, kv_heads, head_dim: its shape.
        parameters: in total.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    parameters: float

    @property
    def weight_bytes(self) -> float:
        return 2 * self.parameters

    @property
    def kv_bytes(self) -> int:
        """Of one token, all layers."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_dim


LLAMA2_7B = ModelShape("LLaMA2-7B", 32, 4096, 32, 32, 128, 6.74e9)
LLAMA2_13B = ModelShape("LLaMA2-13B", 40, 5120, 40, 40, 128, 13.0e9)
LLAMA2_70B = ModelShape("LLaMA2-70B", 80, 8192, 64, 8, 128, 69.0e9)


@dataclass(frozen=True, slots=True)
class Machine:
    """GPUs in nodes. The defaults are those of the paper: 4 nodes of 8 A100-80GB, NVLink at
    600 GB/s inside (300 each way), Ethernet at 125 MB/s between.

    Args:
        gpus, node_gpus: in total, and of one node.
        memory_bytes: of a GPU, of which `memory_share` is used.
        hbm_bytes_s, flops: peaks of a GPU, of which `hbm_share` and `flops_share` are reached.
        near_bytes_s, far_bytes_s: inside a node, between nodes.
        near_s, far_s: latency of one collective message there.
    """

    gpus: int = 32
    node_gpus: int = 8
    memory_bytes: float = 80e9
    memory_share: float = 0.9
    hbm_bytes_s: float = 2.039e12
    hbm_share: float = 0.8
    flops: float = 312e12
    flops_share: float = 0.5
    near_bytes_s: float = 300e9
    far_bytes_s: float = 125e6
    near_s: float = 25e-6
    far_s: float = 100e-6

    def room_tokens(self, shape: ModelShape, gpus: int) -> int:
        """Tokens of keys and values beside the weights, on an instance of so many GPUs."""
        room = gpus * self.memory_bytes * self.memory_share - shape.weight_bytes
        return max(0, int(room / shape.kv_bytes))

    def prefill_s(self, shape: ModelShape, gpus: int, tokens: float) -> float:
        """Seconds to read a prompt: arithmetic alone, which is what long prompts take."""
        flops = 2 * shape.parameters * tokens + 2 * shape.layers * shape.hidden * tokens**2
        return flops / (gpus * self.flops * self.flops_share)

    def move_s(self, shape: ModelShape, tokens: float) -> float:
        """Seconds to send keys and values to another instance of the node."""
        return tokens * shape.kv_bytes / self.near_bytes_s

    def model(self, shape: ModelShape, gpus: int) -> PerformanceModel:
        """The tables of an instance of so many GPUs, in tensor parallel."""
        read_s = self.hbm_bytes_s * self.hbm_share * gpus
        kv_s = shape.kv_bytes / shape.layers / read_s
        work = tuple((float(batch), self._work_s(shape, gpus, batch)) for batch in _BATCHES)
        # What a query brings there (16 bits) and the result back (16 bits and two fp32 a head).
        result_bytes = shape.heads * (2 * 2 * shape.head_dim + 8)
        return PerformanceModel(
            layers=shape.layers,
            work_s=Table(work),
            attention_s=Table(((0.0, 5e-6), (1e6, 5e-6 + 1e6 * kv_s))),
            # As published for a query that is shipped to another GPU of the node.
            ship_s=Table(
                ((0.0, 0.05e-3), (8192.0, 0.075e-3), (32768.0, 0.12e-3), (131072.0, 0.36e-3))
            ),
            far_s=self.far_s + result_bytes / self.far_bytes_s,
        )

    def _work_s(self, shape: ModelShape, gpus: int, batch: int) -> float:
        """Seconds of one layer outside attention."""
        weights = shape.weight_bytes / shape.layers / gpus
        memory_s = weights / (self.hbm_bytes_s * self.hbm_share)
        arithmetic_s = weights * batch / (self.flops * self.flops_share)
        return max(memory_s, arithmetic_s) + 2 * self._all_reduce_s(shape, gpus, batch)

    def _all_reduce_s(self, shape: ModelShape, gpus: int, batch: int) -> float:
        if gpus == 1:
            return 0.0
        num_bytes = 2 * shape.hidden * batch
        inside = min(gpus, self.node_gpus)
        seconds = self.near_s + 2 * (inside - 1) / inside * num_bytes / self.near_bytes_s
        nodes = -(-gpus // self.node_gpus)
        if nodes > 1:
            seconds += self.far_s + 2 * (nodes - 1) / nodes * num_bytes / self.far_bytes_s
        return seconds
