"""The database: one SQLite file. This is the only module that contains SQL."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shop.models import Book, Order, OrderLine, ShopError, State, UnknownBook

SCHEMA = Path(__file__).with_name("schema.sql")
BUSY_TIMEOUT_MS = 2500

SUPPLIERS = (
    ("GANNET", "Gannet Wholesale", 2, 5),
    ("HERON", "Heron House Press", 6, 1),
    ("TERN", "Tern and Daughters, antiquarian", 14, 1),
)


class Store:
    """The shop's tables."""

    def __init__(self, path: str | Path) -> None:
        # Transactions are begun by hand: sqlite3's own would hide where one ends.
        self.db = sqlite3.connect(path, isolation_level=None)
        self.db.row_factory = sqlite3.Row
        self.db.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        self.db.executescript(SCHEMA.read_text(encoding="utf-8"))
        self.db.executemany("INSERT OR IGNORE INTO supplier VALUES (?, ?, ?, ?)", SUPPLIERS)

    def close(self) -> None:
        self.db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything inside happens, or nothing does."""
        self.db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self.db.execute("ROLLBACK")
            raise
        self.db.execute("COMMIT")

    def put_book(self, book: Book) -> None:
        self.db.execute(
            "INSERT OR REPLACE INTO book VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                book.stock_number, book.title, book.author, book.price_pence,
                book.copies, book.promised, book.reorder_level, book.supplier_code,
            ),
        )  # fmt: skip

    def book(self, stock_number: str) -> Book:
        """Raises: UnknownBook."""
        row = self.db.execute(
            "SELECT * FROM book WHERE stock_number = ?", (stock_number,)
        ).fetchone()
        if row is None:
            raise UnknownBook(f"there is no book {stock_number}")
        return Book(**row)

    def books(self) -> Iterator[Book]:
        for row in self.db.execute("SELECT * FROM book ORDER BY author, title"):
            yield Book(**row)

    def move_stock(self, stock_number: str, copies: int, promised: int) -> None:
        """Adds to the copies on the shelf and to the promised ones; either may be negative."""
        self.db.execute(
            "UPDATE book SET copies = copies + ?, promised = promised + ? WHERE stock_number = ?",
            (copies, promised, stock_number),
        )

    def put_customer(self, code: str, name: str, loyal: bool) -> None:
        self.db.execute(
            "INSERT OR REPLACE INTO customer VALUES (?, ?, ?)", (code, name, int(loyal))
        )

    def is_loyal(self, code: str) -> bool:
        """Raises: ShopError if the customer is unknown."""
        row = self.db.execute("SELECT loyal FROM customer WHERE code = ?", (code,)).fetchone()
        if row is None:
            raise ShopError(f"there is no customer {code}")
        return bool(row["loyal"])

    def put_order(self, order: Order) -> int:
        """Stores a new order and its lines; returns the number it was given."""
        cursor = self.db.execute(
            "INSERT INTO sale (customer_code, placed_on, state, delivery_pence, total_pence)"
            " VALUES (?, ?, ?, ?, ?)",
            (order.customer_code, order.placed_on, order.state.value,
             order.delivery_pence, order.total_pence),
        )  # fmt: skip
        self.db.executemany(
            "INSERT INTO sale_line VALUES (?, ?, ?, ?, ?)",
            [
                (
                    cursor.lastrowid,
                    line.stock_number,
                    line.copies,
                    line.from_stock,
                    line.price_pence,
                )
                for line in order.lines
            ],
        )
        return cursor.lastrowid

    def order(self, number: int) -> Order | None:
        row = self.db.execute("SELECT * FROM sale WHERE number = ?", (number,)).fetchone()
        if row is None:
            return None
        lines = self.db.execute(
            "SELECT stock_number, copies, from_stock, price_pence FROM sale_line"
            " WHERE sale_number = ? ORDER BY stock_number",
            (number,),
        )
        values = dict(row) | {"state": State(row["state"])}
        return Order(lines=tuple(OrderLine(**line) for line in lines), **values)

    def set_state(self, number: int, state: State) -> None:
        self.db.execute("UPDATE sale SET state = ? WHERE number = ?", (state.value, number))

    def lead_days(self, supplier_code: str) -> int:
        row = self.db.execute(
            "SELECT lead_days FROM supplier WHERE code = ?", (supplier_code,)
        ).fetchone()
        return row["lead_days"]

    def min_copies(self, supplier_code: str) -> int:
        row = self.db.execute(
            "SELECT min_copies FROM supplier WHERE code = ?", (supplier_code,)
        ).fetchone()
        return row["min_copies"]

    def sales_by_book(self, first_day: str, last_day: str) -> list[sqlite3.Row]:
        """Copies and pence for each book sold in a period, best seller first."""
        return self.db.execute(
            "SELECT book.stock_number, book.title, SUM(sale_line.copies) AS copies,"
            " SUM(sale_line.copies * sale_line.price_pence) AS pence"
            " FROM sale JOIN sale_line ON sale_line.sale_number = sale.number"
            " JOIN book ON book.stock_number = sale_line.stock_number"
            " WHERE sale.placed_on BETWEEN ? AND ? AND sale.state != 'cancelled'"
            " GROUP BY book.stock_number ORDER BY copies DESC, book.title",
            (first_day, last_day),
        ).fetchall()
