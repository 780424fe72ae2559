"""Attention methods: which keys a query attends, and at which positions.

`METHODS` is the table of all of them: name -> (one line, config class, method class), the classes
as "module:attribute" so that listing methods loads no torch.
"""

import dataclasses
import importlib
from typing import Any, NamedTuple

from hipcli.engine.errors import UsageError
from hipcli.engine.methods.configs import HipConfig
from hipcli.engine.nearest import nearest


class MethodEntry(NamedTuple):
    """A row of the table.

    Args:
        summary: one line.
        config, method: the classes, as "module:attribute".
        source: where it was published.
        cost: what a token pays for, besides the keys it attends.
    """

    summary: str
    config: str
    method: str
    source: str
    cost: str


METHODS: dict[str, MethodEntry] = {
    "hip": MethodEntry(
        "hierarchical pruning per KV head, sinks and window, packed positions (default)",
        "hipcli.engine.methods.configs:HipConfig",
        "hipcli.engine.methods.hip:HipMethod",
        "after InfiniteHiP, arXiv 2502.08910",
        "bounds of all pages, then the keys of 256 pages; one question: all keys",
    ),
    "quest": MethodEntry(
        "pages by the bound of their keys' box, per KV head, for every token",
        "hipcli.engine.methods.configs:QuestConfig",
        "hipcli.engine.methods.quest:QuestMethod",
        "Quest, arXiv 2406.10774",
        "bounds of all pages: 1/32 of the keys",
    ),
    "infllm": MethodEntry(
        "blocks found by keys that received attention, for all heads; distant keys have no order",
        "hipcli.engine.methods.configs:InfLLMConfig",
        "hipcli.engine.methods.infllm:InfLLMMethod",
        "InfLLM, arXiv 2402.04617",
        "a vector of every block of 128 tokens and query head",
    ),
    "hip-paper": MethodEntry(
        "three stages of halving over single keys, one list of blocks for all heads",
        "hipcli.engine.methods.configs:HipPaperConfig",
        "hipcli.engine.methods.hip_paper:HipPaperMethod",
        "InfiniteHiP, arXiv 2502.08910",
        "18 of every 256 keys per query head, then a constant number",
    ),
    "reattention": MethodEntry(
        "spans around the keys that all heads vote for",
        "hipcli.engine.methods.configs:ReAttentionConfig",
        "hipcli.engine.methods.reattention:ReAttentionMethod",
        "ReAttention (LongCache), arXiv 2407.15176",
        "all keys, for every query and head",
    ),
    "infini": MethodEntry(
        "segments, and a compressed memory of all before; needs a model trained with gates",
        "hipcli.engine.methods.configs:InfiniConfig",
        "hipcli.engine.methods.infini:InfiniMethod",
        "Infini-attention, arXiv 2404.07143",
        "a matrix per KV head",
    ),
    "window": MethodEntry(
        "sinks and a window only",
        "hipcli.engine.methods.configs:WindowConfig",
        "hipcli.engine.methods.window:WindowMethod",
        "StreamingLLM, arXiv 2309.17453",
        "nothing",
    ),
    "dense": MethodEntry(
        "every key at its true position; exact inside the trained window",
        "hipcli.engine.methods.configs:DenseConfig",
        "hipcli.engine.methods.dense:DenseMethod",
        "Transformer, arXiv 1706.03762",
        "all keys and values are attended",
    ),
}


# Those that run on several ranks: their selection is known there, or they have none.
SHARDED = ("hip", "dense", "window")


def check_sharded(name: str) -> None:
    """Raise UsageError unless the method called `name` runs on several ranks."""
    if name not in SHARDED:
        raise UsageError(
            f"--method {name} runs on one device only",
            f"on several GPUs use {', '.join(SHARDED)}",
        )


def entry(name: str) -> MethodEntry:
    """Row of the method called `name`.

    Raises:
        UsageError: no such method; the message lists those there are.
    """
    try:
        return METHODS[name]
    except KeyError:
        close = nearest(name, METHODS)
        guess = f"did you mean '{close}'? " if close else ""
        raise UsageError(
            f"unknown method '{name}'", f"{guess}methods: {', '.join(METHODS)} (see hip methods)"
        ) from None


def load(path: str) -> Any:
    """The object behind "module:attribute"."""
    module, attribute = path.split(":")
    return getattr(importlib.import_module(module), attribute)


def make_config(name: str, settings: dict[str, int]) -> Any:
    """Config of a method with some fields changed.

    Raises:
        UsageError: unknown method or field, or a value out of range.
    """
    config_class = load(entry(name).config)
    known = [f.name for f in dataclasses.fields(config_class)]
    unknown = [key for key in settings if key not in known]
    if unknown:
        raise UsageError(
            f"method '{name}' has no setting {unknown[0]}",
            f"its settings: {', '.join(known) or 'none'}",
        )
    try:
        return config_class(**settings)
    except ValueError as error:
        raise UsageError(f"method '{name}': {error}") from None


def accepted(name: str, settings: dict[str, int]) -> dict[str, int]:
    """Those of some settings that the method called `name` has."""
    known = {f.name for f in dataclasses.fields(load(entry(name).config))}
    return {key: value for key, value in settings.items() if key in known}


def make_method(name: str, settings: dict[str, int], device: str) -> Any:
    """A method with its config, for a device of a type such as `cpu` or `cuda`.

    Raises UsageError as `make_config` does.
    """
    config = make_config(name, settings)
    if isinstance(config, HipConfig):
        config = config.on(device)
    return load(entry(name).method)(config)
