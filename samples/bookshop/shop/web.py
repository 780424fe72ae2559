"""The counter page: what is in stock, read only."""

import html
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs, urlsplit

from shop.catalogue import search
from shop.models import format_pence
from shop.settings import Settings
from shop.store import Store


def page(store: Store, words: str, settings: Settings) -> str:
    """The page for a search; every text from outside is escaped."""
    rows = "".join(
        f"<tr><td>{html.escape(book.title)}<td>{html.escape(book.author)}"
        f"<td>{format_pence(book.price_pence)}<td>{book.copies}"
        for book in search(store, words)
    )
    return (
        f"<!doctype html><meta charset=utf-8>"
        f'<meta http-equiv=refresh content="{settings.web.refresh_s}">'
        f"<title>{html.escape(settings.shop.name)}</title>"
        f'<form><input name=q value="{html.escape(words, quote=True)}"></form>'
        f"<table>{rows}</table>"
    )


def make_server(store: Store, settings: Settings) -> HTTPServer:
    """A server for the counter, on the address in the settings; port 0 takes any free port."""

    class Counter(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # noqa: N802 - the name is http.server's
            parts = urlsplit(self.path)
            if parts.path == "/health":
                self.answer(200, "text/plain", "ok")
            elif parts.path == "/":
                words = parse_qs(parts.query).get("q", [""])[0]
                self.answer(200, "text/html", page(store, words, settings))
            else:
                self.answer(404, "text/plain", "there is no such page")

        def answer(self, status: int, kind: str, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_args: object) -> None:
            """The counter keeps no log of who looked for what."""

    return HTTPServer((settings.web.host, settings.web.port), Counter)
