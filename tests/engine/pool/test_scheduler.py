"""The greedy scheduler and its model of speed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hipcli.engine.pool.messages import MoveBlocks
from hipcli.engine.pool.performance import Table
from hipcli.engine.pool.scheduler import Scheduler, SchedulerConfig, Standing
from tests.engine.pool.world import MODEL, scheduler


def standing(name: str, free: int, **fields) -> Standing:
    usual = {"capacity_blocks": 100, "lendable_blocks": free, "waiting_blocks": ()}
    return Standing(name, free_blocks=free, **usual | fields)


def test_a_table_is_linear_between_its_points_and_beyond() -> None:
    table = Table(((0, 1.0), (10, 3.0), (20, 3.0)))
    assert [table(x) for x in (-5, 0, 5, 10, 15, 20, 30)] == [0, 1, 2, 3, 3, 3, 3]
    with pytest.raises(ValueError, match="ascending"):
        Table(((0, 1.0), (0, 2.0)))


def test_a_creditor_pays_for_guests_and_a_debtor_waits_for_the_slower_side() -> None:
    alone = MODEL.step_s(1, 6400, 0, [])
    assert alone == pytest.approx(2 * (1e-3 + 1e-3))
    assert MODEL.step_s(1, 6400, 6400, []) == pytest.approx(2 * 3e-3)
    assert MODEL.step_s(1, 3200, 0, [3200]) == pytest.approx(2 * (1e-3 + 0.5e-3 + 1.5e-5))
    assert MODEL.tokens_per_s(0, 0, 6400, []) == 0


def test_a_debtor_gives_as_much_as_lets_the_next_one_in() -> None:
    debtor = standing("a", 5, local_blocks={"long": 90, "short": 5}, waiting_blocks=(20, 20))
    plan = scheduler().plan([debtor, standing("b", 60), standing("c", 40)])
    assert plan.set_aside == {}
    source, order = plan.moves[0]
    # To the one with most room, and enough for both that wait.
    assert (source, order.request, order.destination) == ("a", "long", "b")
    assert 35 <= order.blocks <= 60


def test_nothing_moves_where_nothing_is_gained() -> None:
    nobody_waits = standing("a", 5, local_blocks={"long": 95})
    assert scheduler().plan([nobody_waits, standing("b", 90)]).moves == ()
    # One that waits, but for more room than there is.
    hopeless = standing("a", 5, local_blocks={"long": 95}, waiting_blocks=(100,))
    busy = standing("b", 20, local_blocks={f"r{i}": 1 for i in range(80)})
    assert scheduler().plan([hopeless, busy]).moves == ()


def test_pages_are_not_sent_over_the_slow_network_for_gain() -> None:
    debtor = standing("a", 5, local_blocks={"long": 95}, waiting_blocks=(20,))
    config = SchedulerConfig(nodes={"a": "1", "b": "2"})
    assert Scheduler(config, MODEL).plan([debtor, standing("b", 90)]).moves == ()
    # Room for what cannot wait is taken there all the same.
    longer = standing("a", 0, local_blocks={"long": 100}, unplaced_blocks={"long": 30})
    plan = Scheduler(config, MODEL).plan([longer, standing("b", 90)])
    assert plan.moves == (("a", MoveBlocks("long", 30, "b", unplaced=True)),)


def test_what_a_host_holds_already_is_no_room_for_more() -> None:
    config = SchedulerConfig(nodes={"a": "1", "b": "1", "c": "2"})
    owner = standing(
        "a", 0, local_blocks={"long": 100}, unplaced_blocks={"long": 30}, away_blocks={"b": 90}
    )
    full = standing("b", 10, lendable_blocks=0, guest_blocks=90)
    plan = Scheduler(config, MODEL).plan([owner, full, standing("c", 60)])
    assert plan.moves == (("a", MoveBlocks("long", 30, "c", unplaced=True)),)
    # While it can be enough, the host's own memory is waited for.
    begun = standing("a", 0, local_blocks={"long": 100}, unplaced_blocks={"long": 30})
    busy = standing("b", 10, lendable_blocks=0)
    plan = Scheduler(config, MODEL).plan([begun, busy, standing("c", 60)])
    assert (plan.moves, plan.set_aside) == ((), {"b": 30})


names = st.sampled_from("abcdef")
blocks = st.integers(0, 40)


@st.composite
def standings(draw) -> list[Standing]:
    """Instances as heartbeats could tell of them, creditors and debtors apart."""
    found = []
    for name in draw(st.sets(names, min_size=1)):
        free = draw(blocks)
        role = draw(st.sampled_from(("plain", "creditor", "debtor", "long")))
        fields: dict = {"waiting_blocks": tuple(draw(st.lists(st.integers(1, 40), max_size=3)))}
        sizes = draw(st.lists(st.integers(1, 30), max_size=4))
        fields["local_blocks"] = {f"{name}{i}": size for i, size in enumerate(sizes)}
        if role == "creditor":
            fields["guest_blocks"] = draw(st.integers(1, 30))
        elif role in ("debtor", "long"):
            fields["lendable_blocks"] = 0
            fields["away_blocks"] = {"z": draw(st.integers(1, 30))}
            if role == "long":
                fields["unplaced_blocks"] = {f"{name}0": draw(st.integers(1, 60))}
        found.append(standing(name, free, **fields))
    return found


@settings(max_examples=200, deadline=None)
@given(standings())
def test_a_plan_lends_what_there_is_and_never_in_a_chain(before: list[Standing]) -> None:
    plan = scheduler().plan(before)
    known = {one.name: one for one in before}
    lent: dict[str, int] = {}
    taken: dict[tuple[str, str], int] = {}
    for source, order in plan.moves:
        assert order.blocks > 0 and source != order.destination
        lent[order.destination] = lent.get(order.destination, 0) + order.blocks
        taken[source, order.request] = taken.get((source, order.request), 0) + order.blocks
    for name, blocks in lent.items():
        assert blocks <= known[name].lendable_blocks
        assert not known[name].owes
    sources = {source for source, _ in plan.moves}
    assert not sources & lent.keys()
    assert not any(known[name].guest_blocks for name in sources)
    for (name, request), blocks in taken.items():
        one = known[name]
        # All but the last block, which is written to.
        room = one.unplaced_blocks.get(request) or one.local_blocks[request] - 1
        assert blocks <= room
