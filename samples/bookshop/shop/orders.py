"""Placing and cancelling orders."""

from collections.abc import Mapping

from shop.models import Order, OrderLine, OutOfStock, ShopError, State
from shop.pricing import delivery_pence, goods_pence
from shop.settings import MAX_PROMISED_COPIES, PricingSettings
from shop.store import Store

MAX_LINES = 40


def place(
    store: Store,
    wanted: Mapping[str, int],
    customer_code: str | None,
    day: str,
    settings: PricingSettings,
) -> Order:
    """Places an order in one transaction.

    Copies that are not on the shelf are promised: they are sold now and sent when the supplier
    has delivered. No more than MAX_PROMISED_COPIES of a book are promised at a time, and the books
    of Tern are never promised, since there is only one copy of each in the world.

    Args:
        wanted: number of copies by stock number.
        customer_code: None for a sale at the counter.
        day: ISO date of the sale.

    Raises:
        ShopError: nothing is wanted, more than MAX_LINES different books, or an unknown customer.
        UnknownBook, OutOfStock: the order was not placed.
    """
    if not wanted or len(wanted) > MAX_LINES:
        raise ShopError(f"an order has 1 to {MAX_LINES} lines, this one has {len(wanted)}")
    with store.transaction():
        lines = tuple(_take(store, number, copies) for number, copies in sorted(wanted.items()))
        loyal = customer_code is not None and store.is_loyal(customer_code)
        goods = goods_pence(lines, loyal, settings)
        # At the counter there is nothing to deliver.
        delivery = delivery_pence(goods, settings) if customer_code else 0
        order = Order(0, customer_code, day, State.OPEN, lines, delivery, goods + delivery)
        number = store.put_order(order)
    placed = store.order(number)
    assert placed is not None
    return placed


def _take(store: Store, stock_number: str, copies: int) -> OrderLine:
    """Takes copies from the shelf, or promises them."""
    if copies < 1:
        raise ShopError(f"{copies} copies of {stock_number} cannot be ordered")
    book = store.book(stock_number)
    from_stock = min(copies, book.copies)
    to_promise = copies - from_stock
    allowed = 0 if book.supplier_code == "TERN" else MAX_PROMISED_COPIES - book.promised
    if to_promise > allowed:
        raise OutOfStock(f"{book.title}: {book.copies} in stock, {max(allowed, 0)} can be promised")
    store.move_stock(stock_number, -from_stock, to_promise)
    return OrderLine(stock_number, copies, from_stock, book.price_pence)


def cancel(store: Store, number: int) -> None:
    """Cancels an open order and puts its copies back on the shelf.

    Raises:
        ShopError: there is no such order, or it has been sent or cancelled already.
    """
    with store.transaction():
        order = store.order(number)
        if order is None:
            raise ShopError(f"there is no order {number}")
        if order.state is not State.OPEN:
            raise ShopError(f"order {number} is {order.state.value} and cannot be cancelled")
        for line in order.lines:
            store.move_stock(line.stock_number, line.from_stock, line.from_stock - line.copies)
        store.set_state(number, State.CANCELLED)
