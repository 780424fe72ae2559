"""What needs torch: the model with hip's attention, the method, and the identity of both."""

from dataclasses import asdict, dataclass
from typing import Any

from hipcli.engine.config import EngineConfig
from hipcli.engine.methods import make_method
from hipcli.engine.methods.base import Method
from hipcli.engine.models import ModelFolder, load
from hipcli.engine.runner import Runner
from hipcli.engine.tokenizer import Tokenizer


@dataclass(slots=True)
class LoadedEngine:
    """Weights in memory, and what a session's identity says of them.

    Args:
        runner: the model.
        method: the attention method.
        identity: model, tokenizer, dtype, RoPE and method: whatever shapes keys and values
            besides the documents.
        dtype: of weights and KV, by name.
        vote_distance_tokens: distance between query and keys while voting.
    """

    runner: Runner
    method: Method
    identity: dict[str, Any]
    dtype: str
    vote_distance_tokens: int

    @classmethod
    def load(
        cls, config: EngineConfig, folder: ModelFolder, tokenizer: Tokenizer
    ) -> "LoadedEngine":
        """Load the weights.

        Raises:
            ModelError: they are missing, damaged, or of an architecture hip does not run.
        """
        loaded = load(folder, device="cpu", dtype=config.dtype)
        runner = Runner(loaded.model)
        method = make_method(config.method, config.method_settings)
        rope = getattr(loaded.config, "rope_parameters", None) or {}
        identity = {
            "model_name": folder.name,
            "weights": loaded.weights_digest,
            "tokenizer": tokenizer.digest,
            "dtype": loaded.dtype,
            "kv_dtype": loaded.dtype,
            "rope": {str(key): repr(value) for key, value in dict(rope).items()},
            "method": {"name": config.method, **asdict(method.config)},
        }
        # A query this far away is inside the trained window and beyond the reach of local heads.
        distance = min(1024, runner.trained_tokens // 2)
        return cls(runner, method, identity, loaded.dtype, distance)
