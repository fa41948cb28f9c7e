"""The board: the state of a device's queue, as frontends read it."""

from __future__ import annotations

from array import array

from stoker.arena import BOARD_WORDS, Board, BoardPage, BoardWriter

LATER = [300, 200, 100, 50, 20, 10, 5, 0]


def pages(count: int = 1) -> list[memoryview]:
    return [memoryview(array("l", bytes(8 * BOARD_WORDS))) for _ in range(count)]


def line(cap: int, first_ns: int = 1_000_000, row_ns: int = 10_000) -> list[int]:
    return [0, *(first_ns + row_ns * rows for rows in range(1, cap + 1))]


def test_all_frontends_read_the_written_board() -> None:
    """When the device is free, what waits, whose it is, and what batches of any size take."""
    writer, written = BoardWriter(), pages(2)
    writer.set_times(100, line(100))
    writer.set_queue([1, 20, 300], {1 << 16: (5, 1.0), 2 << 16 | 7: (300, 2.5)}, LATER)
    writer.write(written, 5_000, 9_000, parallel=2, other_ns=77)
    for words in written:
        page = BoardPage(words)
        page.look()
        assert (page.written_ns, page.free_ns, page.cap, page.lanes) == (5_000, 9_000, 100, 2)
        assert (page.parallel, page.other_ns, page.waiting) == (2, 77, [1, 20, 300])
        assert page.later == LATER
        assert page.classes == {1 << 16: [5, 1.0], 2 << 16 | 7: [300, 2.5]}
        assert [page.batch_ns(rows) for rows in (1, 3, 64, 99, 100)] == [
            line(100)[rows] for rows in (1, 3, 64, 99, 100)
        ]


def test_unwritten_page_is_empty() -> None:
    """A device that has just begun admits all requests."""
    page = BoardPage(pages()[0])
    page.look()
    assert (page.cap, page.waiting) == (0, [0, 0, 0])


def test_half_written_board_is_not_read() -> None:
    """While a board is written, the earlier values hold."""
    writer, (words,) = BoardWriter(), pages()
    writer.set_times(4, line(4))
    writer.set_queue([0, 3, 0], {}, LATER)
    writer.write([words], 1, 2)
    page = BoardPage(words)
    page.look()
    page.take(2, 1, 0, 1.0)
    words[0] += 1
    words[9] = 99
    page.look()
    assert page.waiting == [0, 5, 0]
    words[0] += 1
    page.look()
    assert page.waiting == [0, 99, 0]


def test_rows_refused_after_sending_are_no_longer_counted() -> None:
    """An idle device does not write, so rows that it refused are no longer counted as waiting."""
    writer, (words,) = BoardWriter(), pages()
    writer.set_times(4, line(4))
    writer.write([words], 1, 2)
    page = BoardPage(words)
    page.look()
    page.take(100, 1, 0, 1.0)
    page.look()
    assert page.waiting == [0, 100, 0]
    page.forget_sent()
    page.look()
    assert page.waiting == [0, 0, 0]


def test_sent_rows_are_due_after_full_batches() -> None:
    """The rows that end between the device's free time and theirs; rows without a time are due last."""
    writer, (words,) = BoardWriter(), pages()
    writer.set_times(4, line(4))
    writer.set_queue([0, 300, 0], {}, LATER)
    writer.write([words], 1_000, 2_000)
    page, full_ns = BoardPage(words), line(4)[4]
    page.look()
    page.take(7, 1, 0, 1.0, 2_000 + 2 * full_ns)
    assert page.later == [307, 207, *LATER[2:]]
    page.take(1, 1, 0, 1.0, 2_000 + full_ns - 1)
    assert page.later == [307, 207, *LATER[2:]]
    page.take(1, 1, 0, 1.0)
    assert page.later == [308, 208, *(rows + 1 for rows in LATER[2:])]


def test_only_those_with_the_most_rows_are_named() -> None:
    """Of hundreds of callers the page has no room; the tiers count them all."""
    writer, (words,) = BoardWriter(), pages()
    writer.set_times(8, line(8))
    writer.set_queue([0, 1000, 0], {1 << 16 | caller: (caller, 1.0) for caller in range(1, 201)}, LATER)
    writer.write([words], 1, 2)
    page = BoardPage(words)
    page.look()
    assert sorted(rows for rows, _ in page.classes.values()) == list(range(137, 201))


def test_rows_of_one_frontend_are_counted_for_all() -> None:
    """Each frontend assumes that the others send as many rows, until the device says."""
    board = Board()
    board.lanes = 3
    board.take(2, 1, 5, 2.0)
    assert (board.waiting, board.classes) == ([0, 6, 0], {1 << 16 | 5: [6, 2.0]})
    board.take(-2, 1, 5, 2.0)
    assert board.waiting == [0, 0, 0]


def test_load_is_requested_over_possible_rows() -> None:
    """Whether it is taken or not, over a quarter of a second."""
    board = Board()
    board.cap, board.costs_ns = 2, [500_000, 1_000_000]
    board.ask(1, 1)
    board.ask(200_000_001, 799)
    assert board.load == 0.0
    board.ask(400_000_001, 800)
    assert round(board.load, 3) == 2.0


def test_refused_caller_stays_away_longer_while_too_many_come() -> None:
    """The pause grows each quarter of a second under overload, and shrinks soon after."""
    board = Board()
    board.cap, board.costs_ns = 1, [1_000_000]
    seen = []
    for quarter, rows in enumerate((500, 500, 500, 100, 100, 100), 1):
        board.ask(quarter * 250_000_000, rows)
        seen.append(round(board.crowding, 1))
    assert seen == [2.0, 3.8, 7.5, 3.0, 1.2, 1.0]
