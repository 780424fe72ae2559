"""Prices: discounts, delivery and tax. All amounts are whole pence."""

from collections.abc import Iterable

from shop.models import OrderLine
from shop.settings import PricingSettings

# Books are free of value added tax; everything else on the counter is not.
TAX_PERCENT_BOOKS = 0
TAX_PERCENT_OTHER = 20


def round_half_up(numerator: int, denominator: int) -> int:
    """The quotient, rounded to the nearest int, halves away from zero."""
    sign = -1 if numerator < 0 else 1
    return sign * ((2 * abs(numerator) + denominator) // (2 * denominator))


def discount_percent(copies: int, loyal: bool, settings: PricingSettings) -> int:
    """The better of the bulk and the loyalty discount; they are never added up."""
    bulk = settings.bulk_discount_percent if copies >= settings.bulk_copies else 0
    loyalty = settings.loyalty_discount_percent if loyal else 0
    return max(bulk, loyalty)


def goods_pence(lines: Iterable[OrderLine], loyal: bool, settings: PricingSettings) -> int:
    """The price of the goods after the discount, rounded once."""
    lines = tuple(lines)
    copies = sum(line.copies for line in lines)
    full = sum(line.copies * line.price_pence for line in lines)
    percent = discount_percent(copies, loyal, settings)
    return round_half_up(full * (100 - percent), 100)


def delivery_pence(goods: int, settings: PricingSettings) -> int:
    """Delivery is free from a certain value of goods, discount taken off."""
    return 0 if goods >= settings.free_delivery_from_pence else settings.delivery_pence


def tax_pence(amount: int, is_book: bool) -> int:
    """The tax contained in an amount that includes it."""
    percent = TAX_PERCENT_BOOKS if is_book else TAX_PERCENT_OTHER
    return round_half_up(amount * percent, 100 + percent)
