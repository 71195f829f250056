"""What follows from where all processes stand."""

from ddp.losses.roles import MOST_MET, READY, STARTING, WAITING, WORKING, Standing, deal


def at(number: int, role: str = WORKING, done: int = 5, runs: bool = True, **more: object) -> Standing:
    return Standing(role, number, done, runs=runs, **more)  # type: ignore[arg-type]


def test_who_waits_starts_in_the_place_of_a_lost_rank_but_the_last_who_starts_others() -> None:
    found = deal([at(0), at(2), at(3, WAITING), at(4, WAITING)], 3)
    assert found == ([0, 1], [], {2: 1}, [], 3, 1, 0, None)
    found = deal([at(2), at(3, WAITING), at(4, WAITING), at(5, WAITING)], 3)
    assert found.promoted == {1: 0, 2: 1}
    assert deal([at(0), at(3, WAITING)], 2) == ([0], [], {}, [], 1, 1, 1, None), "the other one is to come with it"


def test_who_cannot_start_others_starts_itself() -> None:
    found = deal([at(0), at(2), at(3, WAITING), at(4, WAITING, barren=True)], 3)
    assert (found.promoted, found.nurse) == ({3: 1}, 2)
    found = deal([at(0), at(3, WAITING, barren=True)], 3)
    assert (found.promoted, found.nurse, found.free) == ({1: 1}, None, 1)


def test_nobody_starts_any_more_where_as_many_as_there_are_ranks_were_lost_before_they_joined() -> None:
    waiting = [at(3, WAITING), at(4, WAITING)]
    assert deal([at(0, futile=1), *waiting], 2).promoted == {1: 1}
    found = deal([at(0, futile=2), *waiting], 2)
    assert (found.promoted, found.nurse) == ({}, None)


def test_nobody_starts_for_a_rank_that_another_is_to_replace() -> None:
    assert deal([at(0), at(1, STARTING), at(3, WAITING)], 2).promoted == {}


def test_who_is_ready_joins_at_a_step_only() -> None:
    assert deal([at(0), at(1, READY)], 2)[:4] == ([0, 1], [1], {}, [])
    assert deal([at(0, runs=False), at(1, READY)], 2)[:4] == ([0], [], {}, [])
    # Rank 2 is still in the commit of what came before, which is no step: its next transaction is.
    assert deal([at(0), at(2, done=4, meets=True, runs=False), at(1, READY)], 3).joined == [2]


def test_who_has_made_something_else_is_refused() -> None:
    found = deal([at(0, made=(1, 1)), at(1, READY, made=(1, 0)), at(2, WAITING), at(3, WAITING)], 2)
    assert found[:4] == ([0], [], {2: 1}, [1])


def test_without_ranks_nobody_starts() -> None:
    assert deal([at(1, STARTING), at(3, WAITING)], 2)[:4] == ([], [], {}, [])


def test_who_has_met_many_gives_its_place_away_where_others_can_take_it() -> None:
    waiting = [at(4, WAITING), at(5, WAITING)]
    ranks = [at(0, met=MOST_MET), at(1, met=MOST_MET + 1), at(2, met=MOST_MET - 1)]
    assert deal([*ranks, *waiting], 3).relieved == 1
    assert deal([ranks[2], at(0), at(1), *waiting], 3).relieved is None, "not yet"
    assert deal([*ranks, waiting[0]], 3).relieved is None, "nobody waits but who is to start others"
    assert deal([*ranks[:2], *waiting], 3).relieved is None, "one is missing already"
    assert deal([at(0, met=MOST_MET), at(1, READY), *waiting], 2).relieved is None, "nobody else has the state yet"
    assert deal([at(0, met=MOST_MET), *waiting], 1).relieved is None, "nobody else has the state"
