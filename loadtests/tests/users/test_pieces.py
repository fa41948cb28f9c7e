"""Answers that come piece by piece: what of them is measured, and what makes them fail."""

import itertools
from collections.abc import Iterator

from stoker_bench.users import PiecesSeen, read_pieces
from stoker_client import ModelFailed

FAILED = ModelFailed("it failed (error id 12ab)", status=500, code="model_failed")


def seen(*pieces: object) -> PiecesSeen:
    """Read an answer by a clock that goes on by a second whenever it is looked at."""

    def answer() -> Iterator[object]:
        for piece in pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece

    return read_pieces(answer(), itertools.count(5).__next__)


def test_the_first_piece_and_the_end_are_timed() -> None:
    """From the request, which is sent when the first piece is asked for; a piece may be anything."""
    assert seen(None, 0, {}) == PiecesSeen(count=3, first_s=1, end_s=2, complaint=None)


def test_an_error_behind_pieces_is_told_as_such() -> None:
    """The first piece was there all the same; ids are not told, or each failure would be one of its own kind."""
    assert seen(1, 2, FAILED) == PiecesSeen(2, 1, 2, "ModelFailed behind pieces")


def test_an_error_in_the_place_of_pieces_has_no_first_one() -> None:
    """Its class is told."""
    assert seen(FAILED) == PiecesSeen(0, None, 1, "ModelFailed")


def test_an_answer_without_pieces_is_not_right() -> None:
    """A script that yields nothing is measured by nobody."""
    assert seen() == PiecesSeen(0, None, 1, "no pieces")
