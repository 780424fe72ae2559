"""Checksums of rows: those of zlib, whatever computes them and by how many threads."""

import zlib

import numpy as np
import pytest
import torch

from hipcli.engine.store import crc


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    monkeypatch.setattr(crc, "THREAD_BYTES", 1000)
    yield
    torch.set_num_threads(before)


def rows(count: int, size: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, (count, 2, size), dtype=np.uint8)[:, 1]


@pytest.mark.parametrize("count", [0, 1, 2, 7, 300])
def test_sums_are_those_of_zlib_in_the_order_of_the_rows(two_threads, count) -> None:
    given = rows(count, 6000)
    assert crc.of_rows(list(given), 99) == [zlib.crc32(row, 99) for row in given]


def test_a_few_bytes_need_no_second_thread(monkeypatch) -> None:
    def refused(*_):
        raise AssertionError("a pool was made")

    monkeypatch.setattr(crc, "ThreadPoolExecutor", refused)
    given = rows(5, 100)
    assert crc.of_rows(list(given), 1) == [zlib.crc32(row, 1) for row in given]
