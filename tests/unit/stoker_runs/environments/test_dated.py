"""The order of dates that are tried where pins do not fit together today."""

from datetime import date
from pathlib import Path

import pytest

from stoker.environments.files import read_environment
from stoker.environments.specification import Specification
from stoker.errors import EnvironmentUnusable
from stoker_runs.environments import dated
from stoker_runs.environments.dated import Candidate, RememberedDate, build_first
from stoker_runs.environments.requested import RequestedEnvironment

EXACT = RequestedEnvironment("exact", file="asked.txt")


@pytest.fixture
def specification(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Specification:
    monkeypatch.setattr(dated, "date_of_pins", lambda _: date(2021, 8, 12))
    (tmp_path / "asked.txt").write_text("flask==1.1.4\n")
    return read_environment(tmp_path / "asked.txt")


class Builder:
    """Builds only packages as of a date."""

    def __init__(self, good: str = "") -> None:
        self.good = good
        self.seen: list[Candidate] = []

    def __call__(self, wanted: Candidate) -> str:
        self.seen.append(wanted)
        if wanted.as_of != self.good:
            raise EnvironmentUnusable(f"nothing as of {wanted.as_of or 'today'}:\nmore")
        return "built"


def test_today_comes_first_and_then_the_date_of_the_pins(
    specification: Specification, tmp_path: Path
) -> None:
    """The Python is one of then, unless others choose it; the date is remembered for the same file and place."""
    builder, notes = Builder("2021-08-12"), list[str]()
    remembered = RememberedDate(tmp_path / "environments", specification, "here")
    built, wanted = build_first(specification, EXACT, "", notes.append, builder, can_date=lambda: True)
    assert (built, [one.as_of for one in builder.seen]) == ("built", ["", "2021-08-12"])
    assert notes == ["nothing as of today; trying once more as of 2021-08-12"]
    assert str(wanted.specification.python) == "==3.8.*"
    assert wanted.differences[0].startswith("packages as of 2021-08-12: later uploads were left out, since")
    remembered.keep(wanted)
    assert remembered.read() == "2021-08-12"
    assert RememberedDate(tmp_path / "environments", specification, "there").read() == ""
    builder.seen.clear()
    _, wanted = build_first(
        specification, EXACT, remembered.read(), notes.append, builder, can_date=lambda: True
    )
    assert builder.seen == [wanted]
    assert wanted.as_of == "2021-08-12"


def test_a_date_of_the_user_is_the_only_try(specification: Specification, tmp_path: Path) -> None:
    """The same holds for today without known dates and for relaxed files; fitting packages are not dated."""
    for requested, able, count in (
        (RequestedEnvironment("exact", "", "2021-05-01", "asked.txt"), True, 1),
        (RequestedEnvironment("relaxed", file="asked.txt"), True, 1),
        (EXACT, False, 1),
        (EXACT, True, 2),
    ):
        builder = Builder("never")
        with pytest.raises(EnvironmentUnusable, match="nothing as of"):
            build_first(
                specification, requested, "", lambda _: None, builder, can_date=lambda able=able: able
            )
        assert len(builder.seen) == count, requested
    _, wanted = build_first(specification, EXACT, "", lambda _: None, Builder(), can_date=lambda: True)
    RememberedDate(tmp_path, specification).keep(wanted)
    assert list(tmp_path.glob(".*")) == []


def test_the_message_has_both_reasons(specification: Specification) -> None:
    """That of today, and that of the date."""
    with pytest.raises(
        EnvironmentUnusable, match=r"(?s)as of today.*with packages as of 2021-08-12: nothing as of 2021"
    ):
        build_first(specification, EXACT, "", lambda _: None, Builder("never"), can_date=lambda: True)
