"""What the shop deals in: books, orders and money."""

from dataclasses import dataclass
from enum import Enum


class State(str, Enum):
    """What has become of an order."""

    OPEN = "open"
    SENT = "sent"
    CANCELLED = "cancelled"


class ShopError(Exception):
    """A mistake that the person at the counter can put right."""


class UnknownBook(ShopError):
    """No book has this stock number."""


class OutOfStock(ShopError):
    """More copies are wanted than are in stock and can be promised."""


@dataclass(frozen=True)
class Book:
    """A title on the shelves.

    Args:
        stock_number: ten digits, the last of which is a check digit.
        copies: on the shelves now.
        promised: sold, but still to come from the supplier.
        reorder_level: at this number of copies or fewer the book is ordered again.
    """

    stock_number: str
    title: str
    author: str
    price_pence: int
    copies: int
    promised: int
    reorder_level: int
    supplier_code: str

    @property
    def is_low(self) -> bool:
        return self.copies - self.promised <= self.reorder_level


@dataclass(frozen=True)
class OrderLine:
    """Some copies of one book; from_stock of them are taken from the shelf, the rest promised."""

    stock_number: str
    copies: int
    from_stock: int
    price_pence: int


@dataclass(frozen=True)
class Order:
    """An order as it was placed."""

    number: int
    customer_code: str | None
    placed_on: str
    state: State
    lines: tuple[OrderLine, ...]
    delivery_pence: int
    total_pence: int


def format_pence(pence: int) -> str:
    """Pounds and pence, with a comma for thousands: 123456 is shown as £1,234.56."""
    sign = "-" if pence < 0 else ""
    pounds, rest = divmod(abs(pence), 100)
    return f"{sign}£{pounds:,}.{rest:02d}"
