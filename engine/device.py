"""What fits a device: the KV of a context, and how many tokens pass through the model at once."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from hipcli.engine.errors import DoesNotFitError, UsageError
from hipcli.engine.store.pages import PAGE_TOKENS, KVLayout

CPU_CHUNK_TOKENS = 512
# Longer chunks are not faster.
GPU_CHUNK_TOKENS = 8192
GPU_MIN_CHUNK_TOKENS = 512
# Below this length dense attention is the faster one on a GPU.
GPU_DENSE_TOKENS = 8192
# Older GPUs cannot convert to and from e4m3.
FP8_CAPABILITY = (8, 9)


def free_bytes(device: torch.device) -> int:
    """Bytes that can still be allocated on a CUDA device, PyTorch's own reserve included."""
    free, _ = torch.cuda.mem_get_info(device)
    reserve = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free + reserve


def check_kv_dtype(kv_dtype: str, device: str) -> None:
    """Raise UsageError unless keys and values can be stored like that on the device."""
    if kv_dtype == "int8" and device != "cpu":
        raise UsageError(
            f"--kv-dtype int8 is for processors, and the model would run on {device}",
            "use --kv-dtype fp8_e4m3, which takes as much memory, or add --device cpu",
        )
    if kv_dtype != "fp8_e4m3":
        return
    if device == "cpu":
        raise UsageError(
            "--kv-dtype fp8_e4m3 needs a GPU: a CPU has no instructions for it",
            "use --kv-dtype int8, which takes as much memory, or leave it at auto",
        )
    capability = torch.cuda.get_device_capability(device)
    if capability < FP8_CAPABILITY:
        raise UsageError(
            f"--kv-dtype fp8_e4m3 needs a GPU of compute capability 8.9 or newer; {device} has"
            f" {capability[0]}.{capability[1]}",
            "leave it at auto",
        )


def check_weights(weights: str, device: str) -> None:
    """Raise UsageError unless weights can be kept like that on the device."""
    if weights == "int8" and device != "cpu":
        raise UsageError(
            f"--weights int8 is for processors, and the model would run on {device}",
            "leave it at auto, or add --device cpu",
        )


def check_kv_fits(layout: KVLayout, capacity_tokens: int, device: torch.device) -> None:
    """Raise DoesNotFitError unless the KV of that many tokens fits the device (CUDA only)."""
    if device.type != "cuda":
        return
    needed, free = layout.num_bytes(capacity_tokens), free_bytes(device)
    if needed > free:
        halved = "" if layout.quantised else "--kv-dtype fp8_e4m3, "
        raise DoesNotFitError(
            f"keys and values of {capacity_tokens} tokens take {needed / 2**30:.1f} GiB;"
            f" {device} has {free / 2**30:.1f} GiB left beside the model",
            f"ask about less text, use {halved}a smaller model, or --device cpu",
        )


def activation_bytes(model_config: Any, itemsize: int) -> int:
    """Bytes of intermediate results that one token of a chunk needs, rounded up generously."""
    hidden = model_config.hidden_size
    inner = getattr(model_config, "intermediate_size", 4 * hidden)
    # Residual, normed (once in fp32), q, k, v, attention output; gate, up, their product.
    return (10 * hidden + 4 * inner) * itemsize + 8 * hidden


def chunk_tokens(
    layout: KVLayout,
    model_config: Any,
    capacity_tokens: int,
    device: torch.device,
    kv_bytes: int | None = None,
) -> int:
    """Tokens of a document that pass through the model at once.

    Args:
        layout: of the KV.
        model_config: the model's.
        capacity_tokens: context, question and answer, whose KV is not allocated yet.
        device: where the model is.
        kv_bytes: what of the KV the device takes, where that is not all.

    Returns:
        A multiple of the page size.
    """
    if device.type != "cuda":
        return CPU_CHUNK_TOKENS
    if kv_bytes is None:
        kv_bytes = layout.num_bytes(capacity_tokens)
    room = free_bytes(device) - kv_bytes
    per_token = activation_bytes(model_config, layout.dtype.itemsize)
    chunk = GPU_CHUNK_TOKENS
    while chunk > GPU_MIN_CHUNK_TOKENS and chunk * per_token > room:
        chunk //= 2
    return max(chunk, PAGE_TOKENS)


@contextlib.contextmanager
def memory_errors(short: Callable[[], DoesNotFitError]) -> Iterator[None]:
    """Turn a device that is out of memory into what `short` makes of it, see `short_device`."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise short() from error


def is_out_of_memory(error: RuntimeError) -> bool:
    """A device, or main memory pinned for it, had no room: PyTorch's allocator says so with a type,
    what goes past it (matrix libraries, graphs, pinned buffers) in words."""
    told = str(error)
    return isinstance(error, torch.cuda.OutOfMemoryError) or any(
        words in told for words in ("CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
    )


def short_device(
    layout: KVLayout, capacity_tokens: int, taken: tuple[int, int], device: torch.device
) -> DoesNotFitError:
    """What to say where a device ran out of memory on the way.

    Args:
        layout: of the keys and values.
        capacity_tokens: of context, question and answer together.
        taken: bytes of the weights, and of the keys and values that were on the device.
        device: where.
    """
    weights, kv = taken
    # What is computed on the way needs what the plan left free, and more.
    fewer = (weights + kv - (1 << 30)) // 2**30
    ways = []
    if fewer > weights / 2**30:
        ways.append(f"leave more of it free with --gpu-memory {fewer}GiB")
    if not layout.quantised:
        ways.append("halve keys and values with --kv-dtype fp8_e4m3")
    ways += ["cut the text with --context-limit N --fit middle", "use a smaller model"]
    return DoesNotFitError(
        f"{device} ran out of memory: weights ({_gib(weights)}) and, of keys and values of"
        f" {capacity_tokens:,} tokens, {_gib(kv)} leave too little for what is computed on the way",
        ", ".join(ways) + ", or --device cpu",
    )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:,.2f} GiB"
