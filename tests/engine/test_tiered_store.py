"""A store of three tiers holds what a store on one device holds."""

from pathlib import Path

import pytest
import torch

from hipcli.engine.store.copying import Copier
from hipcli.engine.store.pages import KVLayout, KVStore
from hipcli.engine.store.tiered_store import TieredStore
from hipcli.engine.store.tiers import TierPlan

PLAIN = KVLayout(num_layers=2, num_kv_heads=2, head_dim=16, dtype=torch.float32)
FP8 = KVLayout(2, 2, 16, torch.float32, kv_dtype="fp8_e4m3")
TOKENS = 1500
SINKS, WINDOW = 64, 128


def keys(
    layout: KVLayout, layer: int, start: int, end: int, device: torch.device | str = "cpu"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Those of one text, whatever pieces it comes in."""
    generator = torch.Generator().manual_seed(layer)
    shape = (2, TOKENS, layout.num_kv_heads, layout.head_dim)
    k, v = torch.randn(shape, generator=generator)[:, start:end].to(device, layout.dtype)
    return k, v


def fill(store: KVStore, start: int, end: int, chunk: int = 200) -> None:
    for low in range(start, end, chunk):
        high = min(low + chunk, end)
        window = max(0, low // 64 * 64 - WINDOW)
        store.reserve(low, high, window, SINKS)
        for layer in range(store.layout.num_layers):
            store.append(layer, low, *keys(store.layout, layer, low, high, store.device))
            store.written_through(layer, low, high)
        store.length = high


def both(layout: KVLayout, slots: int) -> tuple[KVStore, TieredStore]:
    """The first of the slabs on the device where slots are an odd number."""
    plan = TierPlan(slots, -(-TOKENS // 64), slab_pages=4, device_slabs=slots % 2 * 3)
    tiered = TieredStore(layout, TOKENS, plan)
    return KVStore(layout, TOKENS, "reference"), tiered


def attended(store: KVStore, layer: int, head: int, page: int) -> list[torch.Tensor]:
    """What an operator finds of a page by the page table."""
    kv = store.kv[layer]
    table = kv.page_table if kv.page_table.dim() == 1 else kv.page_table[head]
    slot = int(table[page])
    assert slot >= 0
    found = [kv.k_pages[slot, head].float(), kv.v_pages[slot, head].float()]
    if kv.k_scales is not None:
        found += [kv.k_scales[slot, head], kv.v_scales[slot, head]]
    return found


def compare(store: KVStore, tiered: TieredStore, layer: int, head: int, page: int) -> None:
    tokens = min(64, store.length - page * 64)
    pairs = zip(
        attended(store, layer, head, page), attended(tiered, layer, head, page), strict=True
    )
    for expected, found in pairs:
        if expected.dim():
            expected, found = expected[:tokens], found[:tokens]
        assert torch.equal(expected, found)


@pytest.mark.parametrize("layout", [PLAIN, FP8], ids=["plain", "fp8"])
@pytest.mark.parametrize("slots", [12, 15, 26])
@pytest.mark.parametrize("chunk", [64, 200, 333])
def test_pages_are_those_of_one_device(layout: KVLayout, slots: int, chunk: int) -> None:
    store, tiered = both(layout, slots)
    generator = torch.Generator().manual_seed(chunk)
    for start in range(0, TOKENS, 300):
        for one in (store, tiered):
            fill(one, start, start + 300, chunk)
        full = (start + 300) // 64
        for layer in range(layout.num_layers):
            assert torch.equal(
                store.index[layer].summaries[:, :full], tiered.index[layer].summaries[:, :full]
            )
        for _ in range(4):
            layer = int(torch.randint(layout.num_layers, (1,), generator=generator))
            shape = (layout.num_kv_heads, tiered.room)
            wanted = torch.randint(-1, full, shape, generator=generator).int()
            tiered.fetch(layer, wanted)
            for head, row in enumerate(wanted.tolist()):
                kept = range(max(0, store.length // 64 - WINDOW // 64), -(-store.length // 64))
                for page in {0, *kept, *row} - {-1}:
                    compare(store, tiered, layer, head, page)
    traffic = tiered.traffic
    assert traffic.wanted_pages >= traffic.missed_pages
    assert (traffic.missed_pages > 0) == (slots < 24)


@pytest.mark.parametrize("layout", [PLAIN, FP8], ids=["plain", "fp8"])
@pytest.mark.parametrize("block_size_k", [8, 16, 64])
def test_keys_come_first_and_values_where_they_are_attended(
    layout: KVLayout, block_size_k: int
) -> None:
    """Between whole pages, with slots used again and again."""
    store, tiered = both(layout, 14)
    for one in (store, tiered):
        fill(one, 0, TOKENS)
    generator = torch.Generator().manual_seed(1)
    for turn in range(12):
        layer, before = turn % 2, tiered.traffic
        wanted = torch.randint(1, 21, (layout.num_kv_heads, tiered.room), generator=generator)
        tiered.fetch(layer, wanted.int(), keys_only=turn % 3 != 2)
        per_page = 64 // block_size_k
        blocks = wanted * per_page + torch.randint(0, per_page, wanted.shape, generator=generator)
        blocks[:, turn % 4] = -1
        tiered.fetch_values(layer, blocks[None].int(), block_size_k)
        for head, row in enumerate(blocks.tolist()):
            for page in set(wanted[head].tolist()):
                pair = (attended(one, layer, head, page) for one in (store, tiered))
                (k, v, *scales), (found_k, found_v, *found_scales) = pair
                assert torch.equal(found_k, k)
                assert all(a == b for a, b in zip(found_scales, scales, strict=True))
                for block in {x for x in row if x >= 0 and x // per_page == page}:
                    first = block % per_page * block_size_k
                    some = slice(first, first + block_size_k)
                    assert torch.equal(found_v[some], v[some])
        came = tiered.traffic.bytes_in - before.bytes_in
        missed = tiered.traffic.missed_pages - before.missed_pages
        assert missed > 0
        if turn < 2:
            # Less than two thirds of whole pages, a block of each page at most.
            least = 1 if block_size_k == 64 else 2 / 3
            assert came <= least * missed * layout.page_bytes / layout.num_kv_heads


def test_room_for_one_piece_alone_spoils_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    store, tiered = both(PLAIN, 12)
    for one in (store, tiered):
        fill(one, 0, TOKENS)
    zeros, asked = torch.zeros, []

    def second_refused(*args: object, **kwargs: object) -> torch.Tensor:
        asked.append(args)
        if len(asked) == 2:
            raise torch.OutOfMemoryError("no room for the second piece")
        return zeros(*args, **kwargs)

    monkeypatch.setattr(torch, "zeros", second_refused)
    with pytest.raises(torch.OutOfMemoryError):
        tiered.tokens(0, TOKENS)
    for found, right in zip(tiered.tokens(0, TOKENS), store.tokens(0, TOKENS), strict=True):
        assert torch.equal(found, right)


@pytest.mark.parametrize("layout", [PLAIN, FP8], ids=["plain", "fp8"])
def test_whole_layers_in_pieces(layout: KVLayout) -> None:
    store, tiered = both(layout, 12)
    for one in (store, tiered):
        fill(one, 0, TOKENS)
    for layer in range(layout.num_layers):
        expected = store.tokens(layer, TOKENS)
        for found, right in zip(tiered.tokens(layer, TOKENS), expected, strict=True):
            assert torch.equal(found, right)
        for first, kv in tiered.key_pieces(layer, 3, 20):
            for place, slot in enumerate(kv.page_table.tolist()):
                right = attended(store, layer, 1, first + place)
                assert torch.equal(kv.k_pages[slot, 1].float(), right[0])
                assert torch.equal(kv.v_pages[slot, 1].float(), right[1])
        before = tiered.traffic.bytes_in
        for first, kv in tiered.key_pieces(layer, 3, 24, values=False):
            for place, slot in enumerate(kv.page_table.tolist()):
                right = attended(store, layer, 1, first + place)
                tokens = min(64, TOKENS - (first + place) * 64)
                assert torch.equal(kv.k_pages[slot, 1, :tokens].float(), right[0][:tokens])
                if kv.k_scales is not None:
                    assert kv.k_scales[slot, 1] == right[2]
        came = tiered.traffic.bytes_in - before
        assert came == 20 * (layout.content_bytes // 2 + layout.scale_bytes)


@pytest.mark.parametrize("layout", [PLAIN, FP8], ids=["plain", "fp8"])
@pytest.mark.parametrize("length", [640, 700])
def test_going_back(layout: KVLayout, length: int) -> None:
    """The tail comes back as it was, however much was read since."""
    stores = both(layout, 12)
    for one in stores:
        fill(one, 0, length)
        tail = one.tail()
        fill(one, length, TOKENS)
        one.rewind(tail)
        # Asked again before anything was read.
        one.rewind(one.tail())
        assert one.length == length
        fill(one, length, 1000, chunk=70)
    store, tiered = stores
    for layer in range(layout.num_layers):
        for found, right in zip(tiered.tokens(layer, 1000), store.tokens(layer, 1000), strict=True):
            assert torch.equal(found, right)
        for page in (0, *range(13, 16)):
            compare(store, tiered, layer, 0, page)


def test_tokens_one_by_one_as_a_graph_writes_them() -> None:
    store, tiered = both(PLAIN, 12)
    fill(store, 0, 800)
    fill(tiered, 0, 700)
    for position in range(700, 800):
        tiered.reserve(position, position + 1, position // 64 * 64 - WINDOW, SINKS)
        rows = tiered.rows_of(torch.tensor([position]))
        for layer in range(PLAIN.num_layers):
            new = keys(PLAIN, layer, position, position + 1)
            tiered.append_at(layer, rows, tiered.filled(position + 1), *new)
        tiered.length = position + 1
    for layer in range(PLAIN.num_layers):
        for page in (0, 10, 11, 12):
            compare(store, tiered, layer, 1, page)


def test_what_does_not_fit_is_refused() -> None:
    _, tiered = both(PLAIN, 8)
    with pytest.raises(ValueError, match="8 slots"):
        tiered.reserve(0, 64 * 7, 0, SINKS)
    with pytest.raises(ValueError, match="not reserved"):
        tiered.append(0, 0, *keys(PLAIN, 0, 0, 64))


@pytest.mark.parametrize("layout", [PLAIN, FP8])
def test_the_last_page_of_the_last_slab_is_gone_back_to(layout: KVLayout) -> None:
    store = TieredStore(layout, 1024, TierPlan(14, 16, slab_pages=4, disk_pages=0))
    fill(store, 0, 1000)
    before = attended(store, 1, 0, 15)
    store.rewind(store.tail())
    fill(store, 1000, 1001)
    # Keys and values; a new token may change the scale of a quantised page, not its tokens.
    for found, right in zip(attended(store, 1, 0, 15)[:2], before[:2], strict=True):
        assert found[:40].equal(right[:40])


def test_rows_of_a_slab_on_the_device_have_their_place_in_a_file(tmp_path: Path) -> None:
    layout, file, told = PLAIN, tmp_path / "pages", []
    file.write_bytes(bytes(12 * layout.page_bytes))
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(0, 256, (4, layout.page_bytes), generator=generator, dtype=torch.uint8)
    copier = Copier(layout, torch.device("cpu"))
    pages = range(8, 11)
    copier.write(file, rows[1:], pages, lambda first, some: told.append((first, len(some))))
    back = torch.zeros_like(rows)
    copier.read(file, back[1:], pages, lambda first, some: told.append((first, len(some))))
    assert torch.equal(back[1:], rows[1:]) and not back[0].any()
    assert told == [(8, 3), (8, 3)]
    whole = torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.uint8).view(12, -1)
    assert torch.equal(whole[8:11], rows[1:]) and not whole[:8].any() and not whole[11].any()
