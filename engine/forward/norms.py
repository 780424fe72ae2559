"""One operation for a root mean square norm where Transformers makes eight.

A decode step of the Llama-3.1-8B shape normalises 65 times, and a chunk of 8,192 tokens passes
through memory eight times for each; see docs/log.md for what the fusion gives.
"""

import torch
from torch import nn
from torch.nn.functional import rms_norm

# Relative difference that rounding in another place may make, per dtype.
TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


class FusedNorm(nn.Module):
    """`rms_norm` of PyTorch with the weights of a norm module.

    Args:
        weight: [hidden_size].
        epsilon: added to the mean square.
    """

    def __init__(self, weight: nn.Parameter, epsilon: float) -> None:
        super().__init__()
        self.weight = weight
        self.variance_epsilon = epsilon

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[..., hidden_size] -> the same shape and dtype."""
        return rms_norm(hidden, self.weight.shape, self.weight, self.variance_epsilon)


def fuse_norms(model: nn.Module) -> int:
    """Replace the norms of a model, in place, by fused ones that give the same.

    A norm that computes something else, as one with weights around zero does, is told by trying
    both on the same numbers, and stays.

    Returns:
        how many were replaced.
    """
    replaced = 0
    for parent in list(model.modules()):
        for name, norm in list(parent.named_children()):
            weight = getattr(norm, "weight", None)
            epsilon = getattr(norm, "variance_epsilon", None)
            if not isinstance(weight, nn.Parameter) or not isinstance(epsilon, float):
                continue
            if isinstance(norm, FusedNorm):
                continue
            fused = FusedNorm(weight, epsilon)
            if _alike(norm, fused):
                setattr(parent, name, fused)
                replaced += 1
    return replaced


@torch.inference_mode()
def _alike(norm: nn.Module, fused: FusedNorm) -> bool:
    weight = fused.weight
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(4, *weight.shape, generator=generator).to(weight.device, weight.dtype)
    expected, received = norm(rows).float(), fused(rows).float()
    error = (received - expected).norm() / expected.norm().clamp(min=1e-30)
    return bool(error <= TOLERANCES.get(weight.dtype, 0.0))
