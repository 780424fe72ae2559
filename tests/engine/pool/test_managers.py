"""The managers of a pooled KV cache: whatever happens to messages and instances, nothing is lost,
doubled, lent twice or half moved."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hipcli.engine.pool.messages import (
    CENTRE,
    Coming,
    Dead,
    Drop,
    Envelope,
    MoveBlocks,
    MoveId,
    PoolRules,
    SetAside,
    TryMove,
    TryReply,
)
from hipcli.engine.pool.owned import ShardLostError
from hipcli.engine.pool.rmanager import RManager
from tests.engine.pool.world import RULES, World

number = st.integers(0, 1 << 16)
step = st.tuples(st.integers(0, 15), number, number, number)


def happen(world: World, kind: int, a: int, b: int, c: int) -> None:
    """One thing that may happen in a pool; the numbers choose what it happens to."""
    names = sorted(world.managers)
    name, other = names[a % len(names)], names[b % len(names)]
    manager = world.managers[name]
    requests = manager.requests()
    request = requests[b % len(requests)] if requests else None
    if kind <= 4:
        world.deliver(a % len(world.network) if world.network else 0)
    elif kind == 5 and world.network:
        # A message comes twice.
        world.network.append(world.network[a % len(world.network)])
    elif kind == 6 and world.network:
        # A message is lost.
        del world.network[a % len(world.network)]
    elif kind == 7:
        world.admit(name, 1 + b % 6)
    elif kind == 8:
        world.admit(name, 1 + b % 12, partly=True)
    elif kind == 9 and request is not None:
        world.release(name, request)
    elif kind in (10, 11) and request is not None:
        target = names[c % len(names)]
        world.order(name, request, 1 + c % 5, target, unplaced=kind == 11)
    elif kind == 12:
        world.tick(0.5 + a % 7)
        world.schedule()
    elif kind >= 14 and world.arriving:
        world.receive(a % len(world.arriving))
    elif kind == 13 and c % 3 == 0:
        # A process is killed and started again.
        if c % 2:
            world.start(other)
        else:
            world.start_centre()


@settings(max_examples=150, deadline=None)
@given(st.lists(step, min_size=30, max_size=150))
def test_whatever_happens(steps: list[tuple[int, int, int, int]]) -> None:
    world = World()
    for kind, a, b, c in steps:
        happen(world, kind, a, b, c)
        world.check()
    world.settle()
    world.check()
    # In the end what is lent is what somebody owes, block by block.
    lent = {
        (name, move): len(guest.slots)
        for name, manager in world.managers.items()
        for move, guest in manager._guests.items()
    }
    owed = {
        (loan.creditor, move): len(loan.indices)
        for manager in world.managers.values()
        for move, loan in manager._owned.loans.items()
    }
    assert lent == owed
    for name, manager in world.managers.items():
        assert not manager._leaving
        # The gManager knows where everything is.
        for request in manager.requests():
            places = manager._owned.places(request)
            counts: dict[str, int] = {}
            for place in places:
                if place.instance:
                    counts[place.instance] = counts.get(place.instance, 0) + 1
            assert world.centre.placement().get(request, {}) == counts, name
            lost = request in manager.lost_requests()
            assert lost == any(place.slot == -2 for place in places)


def lending() -> tuple[World, str]:
    """A request of six blocks at "a", of which four are with "b"."""
    world = World()
    request = world.admit("a", 6)
    assert request is not None
    world.order("a", request, 4, "b")
    world.settle(1)
    assert world.managers["a"].borrowed(request) == {"b": 4}
    return world, request


def test_pages_move_oldest_first_and_the_last_one_stays() -> None:
    world = World()
    request = world.admit("a", 6)
    assert request is not None
    world.order("a", request, 60, "b")
    world.settle(1)
    places = world.managers["a"].places(request)
    assert [place.instance for place in places] == ["b"] * 5 + ["a"]
    assert (world.managers["a"].free_blocks, world.managers["b"].free_blocks) == (7, 3)
    world.check()
    world.release("a", request)
    world.settle(2)
    assert [manager.free_blocks for manager in world.managers.values()] == [8, 8, 8]
    assert world.centre.placement() == {}


def test_a_refusal_leaves_nothing() -> None:
    world = World()
    world.admit("b", 7)
    request = world.admit("a", 6)
    assert request is not None
    world.order("a", request, 4, "b")
    before = world.managers["b"].free_blocks
    world.deliver()
    (reply,) = world.network
    assert reply.message == TryReply(MoveId("a", 1, 1), False)
    assert (world.managers["b"].free_blocks, world.managers["b"].is_creditor) == (before, False)
    world.deliver()
    assert not world.managers["a"].is_debtor


def test_a_reservation_expires_when_nothing_comes() -> None:
    world = World()
    request = world.admit("a", 6)
    assert request is not None
    world.order("a", request, 4, "b")
    world.deliver()
    assert world.managers["b"].free_blocks == 4
    world.network.clear()
    world.tick(RULES.reserve_s + 0.1)
    assert world.managers["b"].free_blocks == 8
    # And the source goes on with what it had all the time.
    assert not world.managers["a"].is_debtor
    assert all(place.instance == "a" for place in world.managers["a"].places(request))


def test_what_is_dropped_while_it_arrives_is_freed_afterwards() -> None:
    manager = RManager("b", 1, 8, RULES)
    move = MoveId("a", 1, 1)
    manager.handle(Envelope("a", 1, "b", TryMove(move, "r", 3)), 0.0)
    manager.handle(Envelope("a", 1, "b", Coming(move, 3)), 0.0)
    manager.handle(Envelope("a", 1, "b", Drop((move,))), 0.0)
    # Something is still written there.
    assert manager.free_blocks == 5
    assert manager.arrived(move, 0.0) == []
    assert manager.free_blocks == 8 and manager.guest_slots(move) == ()


def test_a_creditor_does_not_borrow_and_a_debtor_does_not_lend() -> None:
    world, _ = lending()
    mine = world.admit("b", 3)
    other = world.admit("c", 6)
    assert mine is not None and other is not None
    # "b" lends: an order to borrow is not followed, and a request that does not fit is refused.
    world.order("b", mine, 2, "c")
    assert not world.managers["b"].is_debtor
    assert world.admit("b", 20, partly=True) is None
    # "a" borrows: it refuses, though it has room.
    world.order("c", other, 2, "a")
    world.settle(1)
    assert world.managers["a"].free_blocks == 6
    assert world.managers["c"].borrowed(other) == {}


def test_a_dead_creditor_is_never_left_out_of_an_answer() -> None:
    world, request = lending()
    world.start("b")
    world.settle(3)
    manager = world.managers["a"]
    assert manager.lost_requests() == [request]
    with pytest.raises(ShardLostError, match="4 of 6 blocks of r0 are on no instance"):
        manager.places(request)
    # Read again from its session it has a place again.
    world.release("a", request)
    again = world.admit("a", 6)
    assert again is not None and manager.is_placed(again) and manager.lost_requests() == []


def test_what_a_dead_debtor_borrowed_is_free_again() -> None:
    world, _ = lending()
    world.start("a")
    world.settle(3)
    assert [manager.free_blocks for manager in world.managers.values()] == [8, 8, 8]
    assert not world.managers["b"].is_creditor


def test_one_that_was_only_slow_gives_up_what_others_gave_up() -> None:
    world, request = lending()
    slow = world.managers["b"]
    # Everybody hears that "b" is dead; "b" itself is the last to know.
    epoch = slow.epoch
    for name in ("a", "c"):
        notice = Envelope(CENTRE, 99, name, Dead("b", epoch))
        world.network.extend(world.managers[name].handle(notice, world.now_s))
    assert world.managers["a"].lost_requests() == [request]
    world.network.extend(slow.handle(Envelope(CENTRE, 99, "b", Dead("b", epoch)), world.now_s))
    assert slow.epoch == epoch + 1 and slow.free_blocks == 8
    world.check()


def test_the_map_is_whole_again_after_the_gmanager_died() -> None:
    world, _ = lending()
    world.admit("c", 2)
    world.settle(2)
    known = world.centre.placement()
    assert known == {"r0": {"a": 2, "b": 4}, "r1": {"c": 2}}
    world.start_centre()
    assert world.centre.placement() == {}
    world.settle(2)
    assert world.centre.placement() == known


def test_an_order_of_a_former_gmanager_is_not_followed() -> None:
    manager = RManager("a", 1, 8, RULES)
    manager.admit("r", 6)
    manager.handle(Envelope(CENTRE, 5, "a", SetAside(0)), 0.0)
    assert manager.handle(Envelope(CENTRE, 4, "a", MoveBlocks("r", 2, "b")), 0.0) == []
    assert manager.handle(Envelope(CENTRE, 5, "a", MoveBlocks("r", 2, "b")), 0.0) != []


def test_a_request_longer_than_its_instance_is_placed_over_others() -> None:
    world = World()
    request = world.admit("a", 18, partly=True)
    assert request is not None
    world.managers["b"].waiting_blocks = (5,)
    for _ in range(3):
        world.settle(2, schedule=True)
    manager = world.managers["a"]
    assert manager.is_placed(request)
    places = [place.instance for place in manager.places(request)]
    # The latest blocks are where the request is generated.
    assert places[-8:] == ["a"] * 8 and sorted(set(places)) == ["a", "b", "c"]
    world.check()


def test_room_is_set_aside_for_a_request_that_waits() -> None:
    world = World()
    request = world.admit("a", 20, partly=True)
    filler = world.admit("b", 6)
    assert request is not None and filler is not None
    world.settle(3, schedule=True)
    b = world.managers["b"]
    assert not world.managers["a"].is_placed(request)
    # What is free at "b" is lent already; when more is freed, its own queue must wait.
    world.release("b", filler)
    assert not b.may_admit(6, world.now_s)
    world.settle(3, schedule=True)
    assert world.managers["a"].is_placed(request)
    # And then it need not any more.
    world.settle(8, schedule=True)
    assert b.may_admit(b.free_blocks, world.now_s)


@pytest.mark.parametrize(
    "wrong",
    [
        {"heartbeat_s": 20},
        {"heartbeat_s": 0},
        {"lease_s": 0.5},
        {"reserve_s": 0},
        {"lend_share": 1.5},
        {"keep_free_blocks": -1},
    ],
)
def test_rules_that_cannot_be(wrong: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        PoolRules(**wrong)
