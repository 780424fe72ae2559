"""Norms of a model: one operation that gives the same, or the stock module."""

import pytest
import torch
from torch import nn
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from hipcli.engine.forward.norms import FusedNorm, fuse_norms
from tests.engine.tiny import tiny_model


class AroundZero(LlamaRMSNorm):
    """Multiplies by 1 + weight, as some architectures do."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return super().forward(hidden_states) * (1 + 1 / self.weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_norm_is_the_stock_norm(dtype: torch.dtype) -> None:
    norm = LlamaRMSNorm(96, eps=1e-5).to(dtype)
    nn.init.normal_(norm.weight)
    hidden = torch.randn(2, 7, 96, dtype=dtype)
    tolerance = (
        {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 1e-2}
    )
    torch.testing.assert_close(FusedNorm(norm.weight, 1e-5)(hidden), norm(hidden), **tolerance)


def test_every_norm_of_a_model_is_replaced() -> None:
    model = tiny_model("llama")
    ids = torch.arange(40).unsqueeze(0)
    with torch.inference_mode():
        expected = model(ids, use_cache=False).logits
        assert fuse_norms(model) == 2 * model.config.num_hidden_layers + 1
        torch.testing.assert_close(model(ids, use_cache=False).logits, expected)


@pytest.mark.parametrize("norm", [AroundZero(32), GemmaRMSNorm(32)])
def test_other_norms_stay(norm: nn.Module) -> None:
    holder = nn.Sequential(norm)
    assert fuse_norms(holder) == 0
    assert holder[0] is norm
