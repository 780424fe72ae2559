"""Stock, orders and reordering for a small bookshop."""

__version__ = "2.3.1"
