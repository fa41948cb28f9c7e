"""`python -m stoker_bench.load --pieces`: locust's users before a real server of a script that yields."""

import sys
from importlib.util import find_spec

import pytest

from stoker_bench import load
from stoker_bench.users import PIECE_FORMS, PieceForm


@pytest.mark.skipif(find_spec("locust") is None, reason="locust comes with stoker-bench[load]")
@pytest.mark.parametrize("form", PIECE_FORMS)
def test_users_read_the_pieces_of_a_script(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], form: PieceForm
) -> None:
    """Every answer is whole, and its first piece has a line below that of the answers."""
    command = ["load", "--pieces", form, "--users", "3", "--seconds", "2", "--shape", "steady"]
    monkeypatch.setattr(sys, "argv", command)
    monkeypatch.setattr(load, "PIECES", 2)
    assert load.main() == 0
    *_, answers, first = capfd.readouterr().out.splitlines()
    assert answers.startswith("/score")
    assert first.startswith("  first piece")
    assert first.split()[2] == answers.split()[1] != "0"
