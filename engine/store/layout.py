"""Shape and size of pages, and the files that hold them."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

PAGE_TOKENS = 64


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Shape of one layer's pages.

    Args:
        num_layers, num_kv_heads, head_dim: the model's.
        dtype: of keys, values and summaries.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: "torch.dtype"

    @property
    def page_shape(self) -> tuple[int, int, int, int]:
        """[2, num_kv_heads, page_size, head_dim]: keys, then values."""
        return (2, self.num_kv_heads, PAGE_TOKENS, self.head_dim)

    @property
    def summary_shape(self) -> tuple[int, int, int]:
        """[num_kv_heads, 2, head_dim]: per channel the minimum, then the maximum of the keys."""
        return (self.num_kv_heads, 2, self.head_dim)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page of one layer."""
        return 2 * self.num_kv_heads * PAGE_TOKENS * self.head_dim * self.dtype.itemsize

    @property
    def summary_bytes(self) -> int:
        """Bytes of the summary of one page of one layer."""
        return 2 * self.num_kv_heads * self.head_dim * self.dtype.itemsize

    def num_bytes(self, num_tokens: int) -> int:
        """Bytes of pages and summaries of all layers for `num_tokens` tokens."""
        pages = num_pages(num_tokens)
        return self.num_layers * pages * (self.page_bytes + self.summary_bytes)


def num_pages(num_tokens: int) -> int:
    """Pages that `num_tokens` tokens touch, the last one possibly half filled."""
    return -(-num_tokens // PAGE_TOKENS)


def layer_files(folder: Path, layer: int) -> tuple[Path, Path]:
    """Files of a layer's pages and summaries inside a session's folder."""
    return folder / "kv" / f"{layer:03d}.pages", folder / "index" / f"{layer:03d}.bounds"


def checksum_file(folder: Path) -> Path:
    """File of the checksums of all pages inside a session's folder."""
    return folder / "checksums.u32"
