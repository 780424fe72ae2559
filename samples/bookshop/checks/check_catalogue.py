"""Checks of the catalogue and the settings."""

import tempfile
import unittest
from pathlib import Path

from shop import catalogue, settings
from shop.models import ShopError, format_pence
from shop.store import Store

HOME = Path(__file__).resolve().parent.parent


class CheckDigits(unittest.TestCase):
    def test_weighted_sum_is_divisible_by_eleven(self):
        for leading in ("000000001", "123456789", "999999999"):
            number = leading + catalogue.check_digit(leading)
            digits = [10 if c == "X" else int(c) for c in number]
            total = sum(w * d for w, d in zip(range(10, 0, -1), digits, strict=True))
            self.assertEqual(total % 11, 0)

    def test_one_wrong_digit_is_noticed(self):
        self.assertTrue(catalogue.is_valid("0000000019"))
        self.assertFalse(catalogue.is_valid("0000000119"))

    def test_letters_are_refused(self):
        with self.assertRaises(ShopError):
            catalogue.check_digit("12345678A")


class Search(unittest.TestCase):
    def setUp(self):
        self.store = Store(":memory:")
        self.addCleanup(self.store.close)
        catalogue.load_csv(self.store, HOME / "data" / "catalogue.csv")

    def test_all_words_must_occur_in_any_order(self):
        found = catalogue.search(self.store, "quill KNOTS")
        self.assertEqual([book.title for book in found], ["A Short History of Knots"])

    def test_nothing_is_found(self):
        self.assertEqual(catalogue.search(self.store, "submarine"), [])


class SettingsFile(unittest.TestCase):
    def test_the_shop_overrides_some_defaults(self):
        loaded = settings.load(HOME / "bookshop.toml")
        self.assertEqual(loaded.web.port, 8714)
        self.assertEqual(loaded.suppliers.attempts, 4)
        self.assertEqual(loaded.suppliers.longest_pause_s, 30.0)

    def test_a_misspelt_key_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "shop.toml"
            path.write_text("[web]\nprot = 80\n")
            with self.assertRaisesRegex(ValueError, "prot"):
                settings.load(path)


class Money(unittest.TestCase):
    def test_pence_are_shown_as_pounds(self):
        self.assertEqual(format_pence(123456), "£1,234.56")
        self.assertEqual(format_pence(-5), "-£0.05")


if __name__ == "__main__":
    unittest.main()
