"""What needs torch: the model with hip's attention, the method, and the identity of both."""

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from hipcli.engine.answering.second_look import LookWeights
from hipcli.engine.config import EngineConfig
from hipcli.engine.device import (
    GPU_DENSE_TOKENS,
    check_kv_dtype,
    check_weights,
    chunk_tokens,
    short_device,
)
from hipcli.engine.errors import DoesNotFitError, ModelError, UsageError
from hipcli.engine.forward.runner import Runner
from hipcli.engine.methods import make_config, make_method
from hipcli.engine.methods.base import Method
from hipcli.engine.methods.hip import HipMethod
from hipcli.engine.methods.infini import InfiniMethod
from hipcli.engine.models import ModelFolder, config_digest, load
from hipcli.engine.models.gates import gates_digest, load_gates
from hipcli.engine.models.heads import HeadWeights
from hipcli.engine.models.loading import pick_device
from hipcli.engine.reading.tiering import Tiering
from hipcli.engine.store.layout import PAGE_TOKENS
from hipcli.engine.store.limits import HostLimit
from hipcli.engine.store.tiers import TierPlan, device_bytes
from hipcli.engine.threads import most_threads
from hipcli.engine.tokenizer import Tokenizer


@dataclass(slots=True)
class LoadedEngine:
    """Weights in memory, and what a session's identity says of them.

    Args:
        runner: the model.
        method: the attention method.
        identity: model, tokenizer, dtype, RoPE and method: whatever shapes keys and values
            besides the documents.
        folder: of the model.
        dtype: of weights and KV, by name.
        device: where they are, by name.
        vote_distance_tokens: distance between query and keys while voting.
        tiering: what of a context a GPU holds; None on a CPU.
    """

    runner: Runner
    method: Method
    identity: dict[str, Any]
    folder: ModelFolder
    dtype: str
    device: str
    vote_distance_tokens: int
    tiering: Tiering | None = None

    @classmethod
    def load(
        cls, config: EngineConfig, folder: ModelFolder, tokenizer: Tokenizer
    ) -> "LoadedEngine":
        """Load the weights.

        Raises:
            ModelError: they are missing, damaged, or of an architecture hip does not run there.
            UsageError: the device or the dtype is not to be had.
        """
        device = pick_device(config.device)
        check_kv_dtype(config.kv_dtype, device)
        check_weights(config.weights, device)
        if config.threads:
            torch.set_num_threads(most_threads(config.threads))
        loaded = load(
            folder,
            device=config.device,
            dtype=config.dtype,
            models_dir=config.models_dir,
            verify_weights=config.verify_weights,
        )
        if loaded.device != "cpu":
            # Kernels run on the current device.
            torch.cuda.set_device(loaded.device)
        limit = None
        if loaded.device == "cpu":
            limit = HostLimit.of(config.host_memory_bytes, config.models_dir)
        runner = Runner(loaded.model, config.kv_dtype, weights=config.weights, host_limit=limit)
        _check_kernels(runner, folder.name)
        method = _method(config, runner, folder)
        tiering = _tiering(config, runner, method)
        rope = getattr(loaded.config, "rope_parameters", None) or {}
        identity = {
            "model_name": folder.name,
            "weights": loaded.weights_digest,
            "config": config_digest(folder.path),
            "tokenizer": tokenizer.digest,
            "dtype": loaded.dtype,
            "kv_dtype": loaded.dtype if config.kv_dtype == "auto" else config.kv_dtype,
            "rope": {str(key): repr(value) for key, value in dict(rope).items()},
            "method": _method_record(config, method),
            "read_with": _read_with(method),
        }
        if config.weights != "auto":
            identity["weights_as"] = config.weights
        # A query this far away is inside the trained window and beyond the reach of local heads.
        distance = min(1024, runner.trained_tokens // 2)
        return cls(runner, method, identity, folder, loaded.dtype, loaded.device, distance, tiering)

    def with_method(self, config: EngineConfig) -> "LoadedEngine":
        """The same weights with the method that `config` names."""
        method = _method(config, self.runner, self.folder)
        record = {"method": _method_record(config, method), "read_with": _read_with(method)}
        identity = {**self.identity, **record}
        tiering = _tiering(config, self.runner, method)
        return replace(self, method=method, identity=identity, tiering=tiering)

    def head_weights(self, heads: HeadWeights | None) -> torch.Tensor | None:
        """What the vote of each head counts, fp32 [num_layers, num_heads], where the model is."""
        if heads is None:
            return None
        return torch.tensor(heads.weights, dtype=torch.float32, device=self.runner.device)

    def look_weights(self, heads: HeadWeights | None) -> LookWeights:
        """What a second look counts, where the model is."""
        if heads is None or heads.look is None:
            return LookWeights()
        rows = [heads.look.words, heads.look.last]
        attention = torch.tensor(rows, dtype=torch.float32, device=self.runner.device)
        return LookWeights(heads.look.likelihood, attention)

    def plan(self, capacity_tokens: int) -> TierPlan | None:
        """Where the pages of so many tokens lie; None for all where the model is."""
        if self.tiering is None:
            return None
        return self.tiering.plan(self.runner.layout, capacity_tokens)

    def short_of_memory(self, capacity_tokens: int, plan: TierPlan | None) -> DoesNotFitError:
        """What to say where the GPU ran out of memory with a context of so many tokens.

        Args:
            capacity_tokens: of context, question and answer together.
            plan: that was made for it.
        """
        layout = self.runner.layout
        kv_bytes = layout.num_bytes(capacity_tokens)
        if plan is not None:
            kv_bytes = device_bytes(layout, plan.capacity_pages, plan.slots)
        taken = _weights_bytes(self.runner), kv_bytes
        return short_device(layout, capacity_tokens, taken, self.runner.device)

    def chunk_tokens(self, config: EngineConfig, capacity_tokens: int) -> int:
        """Tokens of a document that pass through the model at once."""
        if config.prefill_chunk_tokens:
            return config.prefill_chunk_tokens
        runner, kv_bytes = self.runner, None
        most = capacity_tokens
        plan = self.plan(capacity_tokens)
        if self.tiering is not None and plan is not None:
            kv_bytes = device_bytes(runner.layout, plan.capacity_pages, plan.slots)
            most = self.tiering.chunk_tokens(plan)
        chunk = chunk_tokens(
            runner.layout, runner.model.config, capacity_tokens, runner.device, kv_bytes
        )
        while chunk > max(most, PAGE_TOKENS) and kv_bytes is not None:
            chunk //= 2
        return chunk


def _weights_bytes(runner: Runner) -> int:
    # Tensors that are tied are there once.
    return sum({x.data_ptr(): x.nbytes for x in runner.model.parameters()}.values())


def _tiering(config: EngineConfig, runner: Runner, method: Method) -> Tiering | None:
    """Plans the runner's stores from now on."""
    if runner.device.type != "cuda":
        return None
    tiering = Tiering(config, method, _weights_bytes(runner), runner.device)
    runner.tiers = tiering.plan if method.reads_tiers else None
    return tiering if method.reads_tiers else None


def _method(config: EngineConfig, runner: Runner, folder: ModelFolder) -> Method:
    device = runner.device.type
    method: Method = make_method(config.method, config.method_settings, device)
    if runner.layout.quantised and not method.reads_quantised:
        raise UsageError(
            f"--method {config.method} does not attend keys and values in {config.kv_dtype}",
            "leave --kv-dtype at auto",
        )
    if isinstance(method, HipMethod) and device == "cuda":
        # Not a setting of its own: a session serves other devices too.
        method.dense_floor_tokens = min(runner.trained_tokens, GPU_DENSE_TOKENS)
    if isinstance(method, InfiniMethod):
        num_layers = runner.layout.num_layers
        method.own_attention.gates = load_gates(folder.path, num_layers, runner.num_heads)
    return method


def _method_record(config: EngineConfig, method: Method) -> dict[str, Any]:
    """The method as a session's identity has it: what is left to the device stays so."""
    settings = asdict(make_config(config.method, config.method_settings))
    record = {"name": config.method, **settings}
    if isinstance(method, InfiniMethod) and method.own_attention.gates is not None:
        record["gates"] = gates_digest(method.own_attention.gates)
    return record


def _read_with(method: Method) -> dict[str, int]:
    """The numbers behind what the settings left to the device, for who reads a manifest."""
    if not isinstance(method, HipMethod):
        return {}
    return {name: getattr(method.config, name) for name in method.config.AUTOMATIC}


def _check_kernels(runner: Runner, name: str) -> None:
    """Refuse shapes that the GPU kernels were not made for."""
    if runner.backend != "triton":
        return
    from hipcli.kernels.triton_common import require_supported

    layout = runner.layout
    try:
        require_supported(layout.head_dim, runner.num_heads, layout.num_kv_heads)
    except NotImplementedError as error:
        raise ModelError(f"{name} does not run on a GPU: {error}", "use --device cpu") from None
