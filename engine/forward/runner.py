"""Runs a Transformers model with hip's attention in place of its own.

The model's rotary module is replaced by one that rotates nothing, so that keys reach the store
un-rotated, and the attention of every layer is ours through Transformers' attention interface.
A `models.decoder.Decoder` is not called: `cpu/` runs it from its parts.
The state of a pass travels as the keyword argument `hip_step`; there is no global.
"""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hipcli.engine.cpu.forward import ArrangedModel, arrange
from hipcli.engine.cpu.linear import PlainLinear, best_form, unmap
from hipcli.engine.device import check_kv_fits
from hipcli.engine.errors import DoesNotFitError
from hipcli.engine.forward.norms import fuse_norms
from hipcli.engine.forward.rope import IdentityRotary, RopeTables
from hipcli.engine.forward.step import KeysWritten, StepInput
from hipcli.engine.models.decoder import Decoder
from hipcli.engine.store.limits import HostLimit
from hipcli.engine.store.pages import KVLayout, KVStore
from hipcli.engine.store.tiered_store import TieredStore
from hipcli.engine.store.tiers import TierPlan
from hipcli.kernels.backends import resolve

if TYPE_CHECKING:
    from hipcli.engine.answering.decode_pass import DecodeStep


def _attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    hip_step: StepInput | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Transformers' attention function: q [1, H, T, D], k and v [1, HK, T, D] -> [1, T, H, D]."""
    if hip_step is None:
        raise ValueError("the hip attention needs the keyword argument hip_step")
    layer: Any = module.layer_idx
    hip_step.softmax_scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    hip_step.append(layer, key[0].transpose(0, 1), value[0].transpose(0, 1))
    out = hip_step.attention.attend(layer, query[0].transpose(0, 1), hip_step)
    return out.unsqueeze(0), None


@cache
def _register() -> None:
    """Make the attention known to Transformers, which takes its time to import."""
    from transformers import AttentionInterface

    AttentionInterface.register("hip", _attention)


class Runner:
    """A model whose attention is hip's.

    Args:
        model: a Transformers causal language model, or a `Decoder`, in eval mode; it is changed in
            place.
        kv_dtype: how keys and values are stored, a name in `config.KV_DTYPES`.
        backend: of the kernels, or "auto" for the one of the model's device.
        weights: how they are kept on a CPU, a name in `config.WEIGHT_FORMS`.
        host_limit: of the process's memory where the model runs on a CPU, or None.

    Attributes:
        tiers: says where the pages of a store of so many tokens lie, None for all on the device;
            without it all are.
    """

    def __init__(
        self,
        model: Any,
        kv_dtype: str = "auto",
        backend: str = "auto",
        weights: str = "auto",
        host_limit: HostLimit | None = None,
    ) -> None:
        config = model.config
        self.model = model
        self.host_limit = host_limit
        self.tiers: Callable[[KVLayout, int], TierPlan | None] | None = None
        self.device = next(model.parameters()).device
        self.dtype = next(model.parameters()).dtype
        self.backend = resolve(backend, self.device)
        self.tables = RopeTables.of(model.model.rotary_emb, self._table_dtype(), self.device)
        model.model.rotary_emb = IdentityRotary(self.tables.rotary_dim)
        if not isinstance(model, Decoder):
            _register()
            model.config._attn_implementation = "hip"
        fuse_norms(model)
        self._arranged: ArrangedModel | None = None
        if self.device.type == "cpu":
            form = best_form(model, weights)
            self._arranged = arrange(model, weights)
            if form is not PlainLinear and host_limit is not None and host_limit.reached(0):
                unmap(model)
        self.num_heads = config.num_attention_heads
        self.layout = KVLayout(
            num_layers=config.num_hidden_layers,
            num_kv_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None)
            or config.hidden_size // config.num_attention_heads,
            dtype=self.dtype,
            kv_dtype=kv_dtype,
        )
        self.trained_tokens: int = config.max_position_embeddings

    def _table_dtype(self) -> torch.dtype:
        # On a CPU tables multiply in the model's own dtype, as the stock model's do. The kernels
        # multiply in fp32; half tables are half the bytes, and more exact than bf16.
        if self.backend == "cpu" or self.dtype == torch.float32:
            return self.dtype
        return torch.float16

    def peak_device_bytes(self) -> int:
        """Most bytes that PyTorch held on the GPU so far; 0 on a CPU."""
        if self.device.type != "cuda":
            return 0
        return torch.cuda.max_memory_reserved(self.device)

    def new_store(self, capacity_tokens: int) -> KVStore:
        """An empty store where the model is. Raises DoesNotFitError if there is no room."""
        plan = None if self.tiers is None else self.tiers(self.layout, capacity_tokens)
        if plan is not None:
            return self._tiered_store(capacity_tokens, plan)
        check_kv_fits(self.layout, capacity_tokens, self.device)
        return KVStore(self.layout, capacity_tokens, self.backend, self.device, self.host_limit)

    def _tiered_store(self, capacity_tokens: int, plan: TierPlan) -> TieredStore:
        """With fewer slots than planned where the device turns out to have less memory."""
        while True:
            with contextlib.suppress(torch.cuda.OutOfMemoryError):
                return TieredStore(self.layout, capacity_tokens, plan, self.backend, self.device)
            fewer = plan.slots * 3 // 4
            if fewer < plan.least_slots:
                raise DoesNotFitError(
                    f"{plan.least_slots} pages of keys and values at a time, and the summaries of"
                    f" {capacity_tokens:,} tokens, do not fit what {self.device} has left",
                    "free memory of the GPU, use a smaller model, or ask about less text",
                )
            plan = replace(plan, slots=fewer)

    @torch.inference_mode()
    def forward(self, ids: torch.Tensor, step: StepInput) -> None:
        """Run tokens whose logits nobody needs; their keys and values end up in the store.

        Args:
            ids: [T] token ids.
            step: state of the pass; `step.store.length` advances by T.
        """
        step.keys_only = True
        if step.store.tiered:
            step.reserve(ids.shape[0])
        with contextlib.suppress(KeysWritten):
            if self._arranged is not None:
                self._arranged.hidden(ids, step)
            else:
                self.model.model(
                    input_ids=ids.unsqueeze(0).to(self.device),
                    position_ids=self._positions(ids, step),
                    use_cache=False,
                    hip_step=step,
                )
        step.store.length = step.start + ids.shape[0]

    @torch.inference_mode()
    def logits(self, ids: torch.Tensor, step: StepInput, *, keep: int = 1) -> torch.Tensor:
        """Run tokens and return the logits of the last `keep` of them: fp32 [keep, vocab_size]."""
        if step.store.tiered:
            step.reserve(ids.shape[0])
        if self._arranged is not None:
            logits = self._arranged.logits(self._arranged.hidden(ids, step)[-keep:])
        else:
            out = self.model(
                input_ids=ids.unsqueeze(0).to(self.device),
                position_ids=self._positions(ids, step),
                use_cache=False,
                logits_to_keep=keep,
                hip_step=step,
            )
            logits = out.logits[0].float()
        step.store.length = step.start + ids.shape[0]
        return logits

    def decode(self, ids: torch.Tensor, step: "DecodeStep") -> torch.Tensor:
        """Run one token whose position the device knows; a CUDA graph can hold this.

        Args:
            ids: int64 [1, 1] on the device.
            step: state of the step.

        Returns:
            logits [vocab_size], in the model's dtype.
        """
        out = self.model(
            input_ids=ids,
            position_ids=step.position.unsqueeze(0),
            use_cache=False,
            logits_to_keep=1,
            hip_step=step,
        )
        return out.logits[0, -1]

    def _positions(self, ids: torch.Tensor, step: StepInput) -> torch.Tensor:
        # The stand-in rotary module ignores them; given so that the model computes none.
        return torch.arange(step.start, step.start + ids.shape[0], device=self.device).unsqueeze(0)
