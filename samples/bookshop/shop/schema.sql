-- Tables of the shop. Money is in pence, dates are ISO 8601 text.

PRAGMA foreign_keys = ON;

CREATE TABLE IF NOT EXISTS supplier (
    code        TEXT PRIMARY KEY,
    name        TEXT NOT NULL,
    lead_days   INTEGER NOT NULL CHECK (lead_days >= 0),
    min_copies  INTEGER NOT NULL DEFAULT 1
);

CREATE TABLE IF NOT EXISTS book (
    stock_number   TEXT PRIMARY KEY CHECK (length(stock_number) = 10),
    title          TEXT NOT NULL,
    author         TEXT NOT NULL,
    price_pence    INTEGER NOT NULL CHECK (price_pence > 0),
    copies         INTEGER NOT NULL DEFAULT 0 CHECK (copies >= 0),
    promised       INTEGER NOT NULL DEFAULT 0 CHECK (promised >= 0),
    reorder_level  INTEGER NOT NULL DEFAULT 2,
    supplier_code  TEXT NOT NULL REFERENCES supplier (code)
);

CREATE TABLE IF NOT EXISTS customer (
    code    TEXT PRIMARY KEY,
    name    TEXT NOT NULL,
    loyal   INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE IF NOT EXISTS sale (
    number          INTEGER PRIMARY KEY AUTOINCREMENT,
    customer_code   TEXT REFERENCES customer (code),
    placed_on       TEXT NOT NULL,
    state           TEXT NOT NULL CHECK (state IN ('open', 'sent', 'cancelled')),
    delivery_pence  INTEGER NOT NULL,
    total_pence     INTEGER NOT NULL
);

CREATE TABLE IF NOT EXISTS sale_line (
    sale_number   INTEGER NOT NULL REFERENCES sale (number),
    stock_number  TEXT NOT NULL REFERENCES book (stock_number),
    copies        INTEGER NOT NULL CHECK (copies > 0),
    from_stock    INTEGER NOT NULL,
    price_pence   INTEGER NOT NULL,
    PRIMARY KEY (sale_number, stock_number)
);

CREATE INDEX IF NOT EXISTS sale_by_day ON sale (placed_on);
CREATE INDEX IF NOT EXISTS book_by_author ON book (author);
