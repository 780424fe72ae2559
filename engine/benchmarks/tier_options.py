"""What `benchmarks/tiers.py` is told, and what that takes."""

from __future__ import annotations

import argparse

from hipcli.engine.benchmarks.engine_gpu import HEAD_DIM, KV_HEADS


def host_gib(options: argparse.Namespace) -> float:
    """Most main memory that a section takes."""
    of_token = 2 * KV_HEADS * HEAD_DIM * options.layers / 2**30
    sizes = {"tiers": 1.05 * options.context * of_token, "long": options.host_gib}
    asked = options.only or list(sizes)
    return max((gib for name, gib in sizes.items() if name in asked), default=0)


def parse(words: list[str] | None, description: str) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser("tiers", description=description.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=None, help="sections to run")
    parser.add_argument("--limit-s", type=float, default=330.0, help="start nothing after this")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--context", type=int, default=1 << 20, help="tokens that are read")
    parser.add_argument("--device-gib", type=float, default=6.0, help="KV of it on the device")
    parser.add_argument("--long", type=int, default=3 << 20, help="tokens of section long")
    parser.add_argument("--long-device-gib", type=float, default=20.0, help="of all layers")
    parser.add_argument(
        "--long-held-gib", type=float, default=94.0, help="pages it keeps for good beside these"
    )
    parser.add_argument("--host-gib", type=float, default=100.0, help="pinned memory of long")
    return parser.parse_args(words)
