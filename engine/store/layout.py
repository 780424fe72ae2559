"""Shape and size of pages, and the files that hold them."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

PAGE_TOKENS = 64
# Scales at the end of a page fill whole cache lines, so that the next page begins with one.
SCALE_ALIGNMENT_BYTES = 128
SCALE_BYTES = 4


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Shape of one layer's pages.

    Args:
        num_layers, num_kv_heads, head_dim: the model's.
        dtype: of summaries, and of keys and values where `kv_dtype` is auto.
        kv_dtype: a name in `config.KV_DTYPES`. Keys and values of another one than auto are codes
            of 8 bits; the fp32 scales of the keys and then of the values of each head lie at the
            end of the page.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: "torch.dtype"
    kv_dtype: str = "auto"

    @property
    def quantised(self) -> bool:
        """Keys and values are codes with scales."""
        return self.kv_dtype != "auto"

    @property
    def page_dtype(self) -> "torch.dtype":
        """Of keys and values in pages."""
        # Listing and verifying sessions waits for no torch.
        import torch

        codes = {"fp8_e4m3": torch.float8_e4m3fn, "int8": torch.int8}
        return codes[self.kv_dtype] if self.quantised else self.dtype

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
        """Bytes of one page of one layer, its scales included."""
        return self.content_bytes + self.scale_bytes

    @property
    def content_bytes(self) -> int:
        """Bytes of the keys and values of one page of one layer."""
        return 2 * self.num_kv_heads * PAGE_TOKENS * self.head_dim * self.page_dtype.itemsize

    @property
    def scale_bytes(self) -> int:
        """Bytes that the scales of one page of one layer take up."""
        if not self.quantised:
            return 0
        used = 2 * self.num_kv_heads * SCALE_BYTES
        return -(-used // SCALE_ALIGNMENT_BYTES) * SCALE_ALIGNMENT_BYTES

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
