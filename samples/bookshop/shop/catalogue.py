"""The catalogue: import from CSV, search, check digits."""

import csv
from collections.abc import Iterator
from pathlib import Path

from shop.models import Book, ShopError
from shop.store import Store

# Weights of the nine leading digits; the check digit makes the weighted sum divisible by 11.
WEIGHTS = (10, 9, 8, 7, 6, 5, 4, 3, 2)
SEARCH_LIMIT = 25


def check_digit(leading: str) -> str:
    """The tenth character of a stock number: a digit, or X for ten.

    Raises:
        ShopError: leading is not nine digits.
    """
    if len(leading) != 9 or not leading.isdigit():
        raise ShopError(f"a stock number begins with nine digits, got {leading!r}")
    total = sum(weight * int(digit) for weight, digit in zip(WEIGHTS, leading, strict=True))
    rest = -total % 11
    return "X" if rest == 10 else str(rest)


def is_valid(stock_number: str) -> bool:
    """True if the last character is the check digit of the nine before it."""
    leading, last = stock_number[:-1], stock_number[-1:]
    return len(leading) == 9 and leading.isdigit() and check_digit(leading) == last


def read_csv(path: Path) -> Iterator[Book]:
    """Books from a file with the columns of data/catalogue.csv.

    Raises:
        ShopError: a stock number has a wrong check digit; the message names the line.
    """
    with path.open(encoding="utf-8", newline="") as file:
        for number, row in enumerate(csv.DictReader(file), start=2):
            if not is_valid(row["stock_number"]):
                raise ShopError(f"{path.name}, line {number}: {row['stock_number']} is misprinted")
            yield Book(
                stock_number=row["stock_number"],
                title=row["title"],
                author=row["author"],
                price_pence=int(row["price_pence"]),
                copies=int(row["copies"]),
                promised=0,
                reorder_level=int(row["reorder_level"] or 2),
                supplier_code=row["supplier"],
            )


def load_csv(store: Store, path: Path) -> int:
    """Adds or replaces the books of a file; returns how many there were."""
    books = list(read_csv(path))
    with store.transaction():
        for book in books:
            store.put_book(book)
    return len(books)


def search(store: Store, words: str) -> list[Book]:
    """Books whose title or author contains every word, at most SEARCH_LIMIT of them."""
    wanted = words.casefold().split()
    found = []
    for book in store.books():
        text = f"{book.title} {book.author}".casefold()
        if all(word in text for word in wanted):
            found.append(book)
            if len(found) == SEARCH_LIMIT:
                break
    return found
