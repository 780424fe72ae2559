"""Settings of the shop, from bookshop.toml; every default stands in this file."""

from dataclasses import dataclass, fields
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:
    import tomli as tomllib

DEFAULT_PORT = 8700
MAX_PROMISED_COPIES = 6


@dataclass(frozen=True)
class ShopSettings:
    name: str = "The Bookshop"
    currency: str = "GBP"
    database: str = "shop.db"


@dataclass(frozen=True)
class WebSettings:
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    refresh_s: int = 30


@dataclass(frozen=True)
class SupplierSettings:
    """How patiently suppliers are asked.

    Args:
        attempts: calls in all, the first included.
        first_pause_s: pause after the first failure; each later pause is twice as long.
        longest_pause_s: no pause is longer than this.
        timeout_s: a call that takes longer counts as failed.
    """

    attempts: int = 3
    first_pause_s: float = 1.0
    longest_pause_s: float = 30.0
    timeout_s: float = 10.0


@dataclass(frozen=True)
class PricingSettings:
    delivery_pence: int = 395
    free_delivery_from_pence: int = 4000
    loyalty_discount_percent: int = 4
    bulk_copies: int = 10
    bulk_discount_percent: int = 12


@dataclass(frozen=True)
class Settings:
    shop: ShopSettings = ShopSettings()
    web: WebSettings = WebSettings()
    suppliers: SupplierSettings = SupplierSettings()
    pricing: PricingSettings = PricingSettings()


def load(path: Path | None = None) -> Settings:
    """Reads a settings file; without one, or where it is silent, the defaults hold.

    Raises:
        ValueError: the file has a section or a key that the shop does not know.
    """
    if path is None or not path.exists():
        return Settings()
    with path.open("rb") as file:
        tables = tomllib.load(file)
    sections = {}
    for field in fields(Settings):
        table = tables.pop(field.name, {})
        known = {f.name for f in fields(field.type)}
        unknown = sorted(set(table) - known)
        if unknown:
            raise ValueError(f"{path}: [{field.name}] has no key {unknown[0]!r}")
        sections[field.name] = field.type(**table)
    if tables:
        raise ValueError(f"{path}: unknown section [{sorted(tables)[0]}]")
    return Settings(**sections)
