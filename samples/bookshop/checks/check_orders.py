"""Checks of orders, prices, reordering and retries."""

import unittest
from pathlib import Path

from shop import catalogue, orders, reports, retry, suppliers
from shop.models import OutOfStock, ShopError, State
from shop.settings import PricingSettings, SupplierSettings
from shop.store import Store

HOME = Path(__file__).resolve().parent.parent
PRICING = PricingSettings()
DAY = "2024-03-12"


def stock_number(leading: int) -> str:
    """The stock number of the n-th book of the catalogue."""
    digits = f"{leading:09d}"
    return digits + catalogue.check_digit(digits)


class WithStore(unittest.TestCase):
    def setUp(self):
        self.store = Store(":memory:")
        self.addCleanup(self.store.close)
        catalogue.load_csv(self.store, HOME / "data" / "catalogue.csv")
        self.store.put_customer("C-1004", "M. Trevanion", True)
        self.store.put_customer("C-2000", "Quayside School", False)


class Orders(WithStore):
    def test_delivery_is_added_below_the_limit(self):
        order = orders.place(self.store, {stock_number(2): 1}, "C-2000", DAY, PRICING)
        self.assertEqual(order.total_pence, 899 + PRICING.delivery_pence)

    def test_unknown_customers_are_refused(self):
        with self.assertRaisesRegex(ShopError, "C-9999"):
            orders.place(self.store, {stock_number(2): 1}, "C-9999", DAY, PRICING)
        self.assertEqual(self.store.book(stock_number(2)).copies, 7)

    def test_loyal_customers_pay_less(self):
        order = orders.place(self.store, {stock_number(5): 2}, "C-1004", DAY, PRICING)
        self.assertEqual(order.total_pence, 4608)

    def test_missing_copies_are_promised(self):
        number = stock_number(7)
        orders.place(self.store, {number: 2}, None, DAY, PRICING)
        book = self.store.book(number)
        self.assertEqual((book.copies, book.promised), (0, 2))

    def test_too_many_promises_leave_everything_as_it_was(self):
        wanted = {stock_number(1): 1, stock_number(7): 7}
        with self.assertRaises(OutOfStock):
            orders.place(self.store, wanted, None, DAY, PRICING)
        self.assertEqual(self.store.book(stock_number(1)).copies, 4)

    def test_antiquarian_books_are_never_promised(self):
        with self.assertRaises(OutOfStock):
            orders.place(self.store, {stock_number(11): 2}, None, DAY, PRICING)

    def test_cancelling_puts_back_what_was_taken(self):
        number = stock_number(3)
        order = orders.place(self.store, {number: 3}, None, DAY, PRICING)
        orders.cancel(self.store, order.number)
        book = self.store.book(number)
        self.assertEqual((book.copies, book.promised), (1, 0))
        self.assertIs(self.store.order(order.number).state, State.CANCELLED)
        with self.assertRaises(ShopError):
            orders.cancel(self.store, order.number)


class Reordering(WithStore):
    def test_low_books_are_ordered_up_to_three_times_their_level(self):
        plan = {purchase.supplier_code: purchase for purchase in suppliers.plan(self.store)}
        self.assertEqual(plan["GANNET"].copies[stock_number(7)], 9)
        self.assertEqual(plan["HERON"].copies[stock_number(3)], 5)
        self.assertNotIn("TERN", plan)

    def test_sales_are_reported_by_month(self):
        orders.place(self.store, {stock_number(9): 2}, None, DAY, PRICING)
        self.assertIn("£17.98", reports.month_report(self.store, "2024-03"))
        self.assertIn("Nothing", reports.month_report(self.store, "2024-04"))


class Retries(unittest.TestCase):
    def test_pauses_double_up_to_the_longest(self):
        patient = SupplierSettings(attempts=5, first_pause_s=8.0)
        self.assertEqual(list(retry.pauses(patient)), [8.0, 16.0, 30.0, 30.0])

    def test_success_after_failures(self):
        outcomes = [TimeoutError(), ConnectionError(), "sent"]
        slept = []

        def action():
            outcome = outcomes.pop(0)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        self.assertEqual(retry.call(action, SupplierSettings(), slept.append), "sent")
        self.assertEqual(slept, [1.0, 2.0])

    def test_a_refusal_is_not_repeated(self):
        calls = []

        def action():
            calls.append(1)
            raise ValueError("refused")

        with self.assertRaises(ValueError):
            retry.call(action, SupplierSettings(), lambda _: None)
        self.assertEqual(len(calls), 1)

    def test_giving_up(self):
        def action():
            raise TimeoutError

        with self.assertRaises(retry.GaveUp):
            retry.call(action, SupplierSettings(attempts=2), lambda _: None)


if __name__ == "__main__":
    unittest.main()
