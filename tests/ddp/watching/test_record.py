"""What a rank says of itself is on its page in as many bytes however many ranks there are."""

import pytest

from ddp.watching.board import PAGE_TEXT
from ddp.watching.record import Place, Record, Waiting, parse, to_text


def waiting_for(ranks: tuple[int, ...]) -> Record:
    wait = Waiting("the default group", 7, "gradient bucket 1 of 3", 12.5, ranks, 1800.0)
    return Record(13.0, {"the default group": 6}, wait, (Place("train.py", 3, "step"),), "")


@pytest.mark.parametrize("ranks", [(), (3,), (0, 1, 2), (5, 1, 2, 3, 9, 8), tuple(range(0, 20, 2)), (0, 1, 1)])
def test_every_record_comes_back(ranks: tuple[int, ...]) -> None:
    record = waiting_for(ranks)
    assert parse(to_text(record, PAGE_TEXT)) == record
    idle = record._replace(waiting=None)
    assert parse(to_text(idle, PAGE_TEXT)) == idle


def test_a_page_does_not_grow_with_the_world() -> None:
    few, many = (to_text(waiting_for(tuple(range(size))), PAGE_TEXT) for size in (8, 100_000))
    assert len(many) - len(few) == len("100000") - len("8")
    assert len(parse(many).waiting.ranks) == 100_000


def test_pages_that_say_the_same_are_read_as_one_object() -> None:
    """Whoever looks at all pages would have as many ranks as there are, times as many."""
    pages = [to_text(waiting_for(tuple(range(1000)))._replace(beat=float(beat)), PAGE_TEXT) for beat in range(3)]
    assert len({id(parse(page).waiting.ranks) for page in pages}) == 1


def test_what_was_done_is_left_out_where_it_does_not_fit() -> None:
    record = waiting_for((0, 1))._replace(contributed={f"messages {number}": number for number in range(10_000)})
    found = parse(to_text(record, PAGE_TEXT))
    assert found == record._replace(contributed=None)
