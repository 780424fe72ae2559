"""Reports: sales of a month, and books that nobody buys."""

import calendar

from shop.models import ShopError, format_pence
from shop.store import Store

SLOW_DAYS = 180


def month_bounds(month: str) -> tuple[str, str]:
    """First and last day of a month given as YYYY-MM.

    Raises:
        ShopError: it is not a month.
    """
    try:
        year, number = (int(part) for part in month.split("-"))
        last = calendar.monthrange(year, number)[1]
    except (ValueError, calendar.IllegalMonthError):
        raise ShopError(f"a month is written YYYY-MM, got {month!r}") from None
    return f"{year:04d}-{number:02d}-01", f"{year:04d}-{number:02d}-{last:02d}"


def month_report(store: Store, month: str) -> str:
    """A table of the books sold in a month, with a sum at the foot."""
    rows = store.sales_by_book(*month_bounds(month))
    if not rows:
        return f"Nothing was sold in {month}."
    lines = [
        f"{row['copies']:>4}  {format_pence(row['pence']):>10}  {row['title']}" for row in rows
    ]
    copies = sum(row["copies"] for row in rows)
    pence = sum(row["pence"] for row in rows)
    return "\n".join([*lines, "-" * 40, f"{copies:>4}  {format_pence(pence):>10}  total"])


def slow_sellers(store: Store, first_day: str, last_day: str) -> list[str]:
    """Titles with copies on the shelf and no sale in a period, by author."""
    sold = {row["stock_number"] for row in store.sales_by_book(first_day, last_day)}
    return [
        book.title for book in store.books() if book.copies > 0 and book.stock_number not in sold
    ]
