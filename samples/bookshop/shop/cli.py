"""The command line. Each command is a function of the store, the settings and its arguments."""

import argparse
import datetime
import sys
from pathlib import Path

from shop import catalogue, orders, reports, suppliers, web
from shop.models import ShopError, format_pence
from shop.retry import GaveUp
from shop.settings import Settings, load
from shop.store import Store

HOME = Path(__file__).resolve().parent.parent


def init(store: Store, _settings: Settings, _arguments: argparse.Namespace) -> str:
    count = catalogue.load_csv(store, HOME / "data" / "catalogue.csv")
    return f"{count} books loaded"


def find(store: Store, _settings: Settings, arguments: argparse.Namespace) -> str:
    books = catalogue.search(store, arguments.words)
    lines = [
        f"{b.stock_number}  {format_pence(b.price_pence):>8}  {b.copies:>3}  {b.author}: {b.title}"
        for b in books
    ]
    return "\n".join(lines) or "nothing found"


def customer(store: Store, _settings: Settings, arguments: argparse.Namespace) -> str:
    store.put_customer(arguments.code, arguments.name, arguments.loyal)
    return f"customer {arguments.code} stored"


def order(store: Store, settings: Settings, arguments: argparse.Namespace) -> str:
    day = datetime.date.today().isoformat()
    wanted = {arguments.stock_number: arguments.copies}
    placed = orders.place(store, wanted, arguments.customer, day, settings.pricing)
    return f"order {placed.number}: {format_pence(placed.total_pence)}"


def cancel(store: Store, _settings: Settings, arguments: argparse.Namespace) -> str:
    orders.cancel(store, arguments.number)
    return f"order {arguments.number} cancelled"


def stock(store: Store, _settings: Settings, arguments: argparse.Namespace) -> str:
    books = [book for book in store.books() if book.is_low or not arguments.low]
    return "\n".join(f"{b.copies:>3} ({b.promised} promised)  {b.title}" for b in books)


def reorder(store: Store, settings: Settings, arguments: argparse.Namespace) -> str:
    lines = []
    for purchase in suppliers.plan(store):
        if not arguments.dry_run:
            suppliers.send(purchase, settings.suppliers)
        copies = sum(purchase.copies.values())
        lines.append(f"{purchase.supplier_code}: {copies} copies in {purchase.expected_days} days")
    return "\n".join(lines) or "nothing is low"


def report(store: Store, _settings: Settings, arguments: argparse.Namespace) -> str:
    return reports.month_report(store, arguments.month)


def serve(store: Store, settings: Settings, _arguments: argparse.Namespace) -> str:
    server = web.make_server(store, settings)
    print(f"http://{settings.web.host}:{server.server_port}", file=sys.stderr)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()
    return "closed"


def parser() -> argparse.ArgumentParser:
    """All commands and their arguments."""
    top = argparse.ArgumentParser(prog="shop", description=__doc__)
    top.add_argument("--config", type=Path, default=HOME / "bookshop.toml")
    commands = top.add_subparsers(required=True, metavar="command")

    def command(function, help_text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(function.__name__, help=help_text)
        sub.set_defaults(function=function)
        return sub

    command(init, "create the database and load the catalogue")
    command(find, "search titles and authors").add_argument("words")
    customers = command(customer, "add or change a customer")
    customers.add_argument("code")
    customers.add_argument("name")
    customers.add_argument("--loyal", action="store_true", help="gets the loyalty discount")
    ordering = command(order, "sell copies of a book")
    ordering.add_argument("stock_number")
    ordering.add_argument("--copies", type=int, default=1)
    ordering.add_argument("--customer", help="code of the customer; none at the counter")
    command(cancel, "cancel an open order").add_argument("number", type=int)
    command(stock, "list the stock").add_argument("--low", action="store_true")
    command(reorder, "order low books").add_argument("--dry-run", action="store_true")
    command(report, "sales of a month").add_argument("month", help="YYYY-MM")
    command(serve, "show the stock in a browser")
    return top


def main(argv: list[str] | None = None) -> int:
    """Runs a command; returns 0, or 1 after a mistake, or 2 if a supplier cannot be reached."""
    arguments = parser().parse_args(argv)
    settings = load(arguments.config)
    store = Store(settings.shop.database)
    try:
        print(arguments.function(store, settings, arguments))
    except ShopError as error:
        print(f"shop: {error}", file=sys.stderr)
        return 1
    except GaveUp as error:
        print(f"shop: supplier not reached: {error}", file=sys.stderr)
        return 2
    finally:
        store.close()
    return 0
