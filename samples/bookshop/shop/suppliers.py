"""Reordering: what to buy, from whom, and how the purchase orders get there."""

import json
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass

from shop import retry
from shop.settings import SupplierSettings
from shop.store import Store

# Enough to bring a book to this many times its reorder level.
REFILL_FACTOR = 3
ENDPOINTS = {
    "GANNET": "https://orders.gannet.example/v2/purchase",
    "HERON": "https://heron-house.example/trade/purchase",
}

Send = Callable[[str, bytes, float], None]


@dataclass(frozen=True)
class PurchaseOrder:
    """Copies wanted from one supplier, by stock number."""

    supplier_code: str
    copies: dict[str, int]
    expected_days: int


def plan(store: Store) -> list[PurchaseOrder]:
    """A purchase order for each supplier who has a book that is low.

    Antiquarian books (supplier TERN) are left out: they are bought by hand.
    """
    wanted: dict[str, dict[str, int]] = {}
    for book in store.books():
        if not book.is_low or book.supplier_code not in ENDPOINTS:
            continue
        missing = REFILL_FACTOR * book.reorder_level - book.copies + book.promised
        copies = max(missing, store.min_copies(book.supplier_code))
        wanted.setdefault(book.supplier_code, {})[book.stock_number] = copies
    return [
        PurchaseOrder(code, copies, store.lead_days(code))
        for code, copies in sorted(wanted.items())
    ]


def post(url: str, body: bytes, timeout_s: float) -> None:
    """Sends JSON to a supplier; raises OSError if it does not arrive."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout_s):
        pass


def send(order: PurchaseOrder, settings: SupplierSettings, transport: Send = post) -> None:
    """Sends a purchase order, again and again if need be (see retry.call).

    Raises:
        GaveUp: the supplier could not be reached.
    """
    body = json.dumps({"lines": order.copies}, sort_keys=True).encode()
    url = ENDPOINTS[order.supplier_code]
    retry.call(lambda: transport(url, body, settings.timeout_s), settings)
