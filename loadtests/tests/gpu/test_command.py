"""The command line of the bench on a GPU."""

import re
import shlex
from pathlib import Path

import pytest

from stoker.errors import DeviceUnavailable
from stoker_bench.gpu import command
from stoker_bench.gpu.acceptance import AcceptanceBench
from stoker_bench.gpu.command import main, parser


def test_the_commands_of_the_documentation_are_understood() -> None:
    """Every call that the README of the bench shows can be parsed."""
    page = (Path(__file__).parents[3] / "loadtests" / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\$ .*loadtests/gpu_bench\.py (.+)$", page, re.MULTILINE)
    assert len(shown) > 1
    for line in shown:
        assert parser().parse_args(shlex.split(line, comments=True)).device


@pytest.mark.parametrize("words", [("acceptance", "--callers", "3"), ("serve",), ()])
def test_unknown_words_end_with_usage(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """Unknown options and parts, and none, are refused."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_an_error_ends_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bench says why it cannot measure."""

    def fail(_: AcceptanceBench) -> None:
        raise DeviceUnavailable("there is no GPU")

    monkeypatch.setattr(command, "allow_many_connections", lambda: None)
    monkeypatch.setattr(AcceptanceBench, "run", fail)
    assert main(["acceptance"]) == 1
    assert capsys.readouterr().err == "gpu_bench.py: there is no GPU\n"
