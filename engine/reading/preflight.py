"""Whether weights, keys and values fit the memory a user allows; asked before any is taken.

Everything is read off the model's files: the sizes of its tensors, the shape of its keys.
"""

from math import prod
from typing import TYPE_CHECKING, Any

from hipcli.engine.config import EngineConfig
from hipcli.engine.errors import DoesNotFitError
from hipcli.engine.json_object import read_json
from hipcli.engine.models import ModelFolder, pick_device, pick_dtype
from hipcli.engine.models.folders import weight_files
from hipcli.engine.models.weights import read_header
from hipcli.engine.resident import resident_bytes
from hipcli.engine.store.layout import PAGE_TOKENS, KVLayout, num_pages
from hipcli.engine.store.tiers import device_bytes

if TYPE_CHECKING:
    import torch

    from hipcli.engine.methods.base import Method

# Fewer tokens than this are not worth a context of their own.
_MIN_TOKENS = 256


def check_memory(
    config: EngineConfig, folder: ModelFolder, capacity_tokens: int, held_pages: int | None = None
) -> None:
    """Refuse what takes more than `config` allows on the device that is used.

    Args:
        config: with its limits; 0 is none.
        folder: of the model.
        capacity_tokens: of context, question and answer together.
        held_pages: most of their pages that one of several ranks has, all of them in its memory;
            None where there is one device, which may leave some to files.

    Raises:
        DoesNotFitError: too much, with both numbers and what would help.
        UsageError: the device or the dtype is not to be had.
        ModelError: the model's files cannot be read.
    """
    if not config.gpu_memory_bytes and not config.host_memory_bytes:
        return
    device = pick_device(config.device)
    on_gpu = device != "cpu"
    limit = config.gpu_memory_bytes if on_gpu else config.host_memory_bytes
    if not limit:
        return
    import torch

    dtype = getattr(torch, pick_dtype(config.dtype, device, config.models_dir))
    layout = _layout(folder, dtype, config.kv_dtype)
    pages, told = num_pages(capacity_tokens), f"{capacity_tokens:,} tokens"
    page_bytes, fixed, what = layout.num_bytes(PAGE_TOKENS), 0, "keys and values"
    if held_pages is not None:
        told = f"{min(held_pages * PAGE_TOKENS, capacity_tokens):,} of {told} on one rank"
    elif on_gpu:
        page_bytes, fixed, what = _on_gpu(config, layout, capacity_tokens)
    else:
        page_bytes, what = _summary_bytes(layout), "the summaries"
    held = pages if held_pages is None else held_pages
    weights, kv = _weights_bytes(folder, dtype), fixed + held * page_bytes
    if config.weights == "int8" and not on_gpu:
        # Embeddings keep their dtype; norms are nothing beside them.
        weights = weights // dtype.itemsize + _embedding_bytes(folder, dtype)
    if weights + kv <= limit:
        return
    flag = "--gpu-memory" if on_gpu else "--host-memory"
    room = (limit - weights - fixed) // page_bytes * pages // max(held, 1) * PAGE_TOKENS
    ways = [f"raise {flag}"]
    if room >= _MIN_TOKENS:
        ways.append(f"cut the text with --fit middle --context-limit {room}")
    if on_gpu and not layout.quantised:
        ways.append("halve keys and values with --kv-dtype fp8_e4m3")
    if held_pages is not None:
        ways.append("use more ranks (--gpus)")
    ways.append("use a smaller model")
    raise DoesNotFitError(
        f"weights ({_mib(weights)}) and {what} of {told}"
        f" ({_mib(kv)}) take {_mib(weights + kv)}; {flag} allows {_mib(limit)}",
        ", or ".join(ways),
    )


def short_memory(config: EngineConfig, device: str) -> str:
    """What to say where the model alone takes more than is allowed; empty where it does not.

    To be asked right after it was loaded: weights and libraries cannot be given back.
    """
    taken = resident_bytes()
    if device != "cpu" or not 0 < config.host_memory_bytes < taken:
        return ""
    return (
        f"--host-memory {_mib(config.host_memory_bytes)} is less than the model and hip itself take"
        f" ({_mib(taken)}): keys and values stay on disk, the rest cannot"
    )


def _summary_bytes(layout: KVLayout) -> int:
    """Bytes of a page of which only the summary must be in memory: on a CPU the rest is a file."""
    return layout.num_layers * layout.summary_bytes


def _on_gpu(config: EngineConfig, layout: KVLayout, num_tokens: int) -> tuple[int, int, str]:
    """What a GPU must hold of a context: bytes of each page, bytes besides, and its name."""
    from hipcli.engine.methods import make_method
    from hipcli.engine.reading.tiering import least_slots

    method: Method = make_method(config.method, config.method_settings, "cuda")
    if method.reads_tiers:
        least = least_slots(method)
        pages = num_pages(num_tokens)
        fixed = device_bytes(layout, 0, least)
        page_bytes = device_bytes(layout, 1, least) - fixed
        if fixed + pages * page_bytes < layout.num_bytes(num_tokens):
            return page_bytes, fixed, "the least of keys and values"
    return layout.num_bytes(PAGE_TOKENS), 0, "keys and values"


def _weights_bytes(folder: ModelFolder, dtype: "torch.dtype") -> int:
    """Bytes of all weights once they are loaded as `dtype`."""
    tensors = (tensor for file in weight_files(folder.path) for tensor in read_header(file))
    return sum(prod(tensor.shape) for tensor in tensors) * dtype.itemsize


def _embedding_bytes(folder: ModelFolder, dtype: "torch.dtype") -> int:
    """Bytes of the table of embeddings."""
    config: dict[str, Any] = read_json(folder.path / "config.json")
    return int(config["vocab_size"]) * int(config["hidden_size"]) * dtype.itemsize


def _layout(folder: ModelFolder, dtype: "torch.dtype", kv_dtype: str) -> KVLayout:
    config: dict[str, Any] = read_json(folder.path / "config.json")
    heads = config["num_attention_heads"]
    return KVLayout(
        num_layers=config["num_hidden_layers"],
        num_kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        dtype=dtype,
        kv_dtype=kv_dtype,
    )


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.1f} MiB"
