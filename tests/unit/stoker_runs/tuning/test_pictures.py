"""The contents of a picture of a sweep."""

from pathlib import Path

import pytest
from tests.unit.stoker_runs.tuning.test_proposals import SPACE, trial

from stoker.errors import InvalidSettings
from stoker_runs.records.states import Status
from stoker_runs.tuning.definition import define_sweep, expression, sampler
from stoker_runs.tuning.pictures import best_so_far, draw_sweep, importances

pytest.importorskip("matplotlib", reason="needs matplotlib")
pytest.importorskip("sklearn", reason="needs scikit-learn")
TERMS = define_sweep(
    sampler(
        "random",
        {**SPACE, "--noise": expression("normal", 0, 1), "--scale": expression("lognormal", 0, 1)},
        1,
    ),
    "acc",
    "maximize",
    30,
)


def test_a_sweep_is_drawn_with_every_kind_of_parameter(tmp_path: Path) -> None:
    """A picture even where some runs have no value; an unknown format is refused by its name."""
    trials = [trial(number, TERMS.parameters(number), number / 30) for number in range(20)]
    trials.append(trial(20, TERMS.parameters(20), None, Status.FAILED))
    # Continued ones have the parameters of their own sweep.
    trials.insert(0, trial(21, {"--other": 1}, 0.5))
    trials.insert(0, trial(22, {**TERMS.parameters(0), "--noise": "loud"}, 0.5))
    draw_sweep(TERMS, trials, tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InvalidSettings, match="cannot be drawn"):
        draw_sweep(TERMS, trials, tmp_path / "sweep.docx")
    with pytest.raises(InvalidSettings, match="no run of the sweep has logged acc"):
        draw_sweep(TERMS, trials[22:], tmp_path / "none.png")


def test_the_best_so_far_follows_the_goal() -> None:
    """It never gets worse."""
    assert best_so_far(TERMS, [0.5, 0.4, 0.7]) == [0.5, 0.5, 0.7]
    assert best_so_far(TERMS.replace(goal="minimize"), [0.5, 0.6, 0.4]) == [0.5, 0.5, 0.4]


def test_the_parameter_that_matters_has_the_largest_share() -> None:
    """Of two parameters, the metric follows one; too few runs give no shares."""
    terms = define_sweep(
        sampler("random", {"--a": expression("uniform", 0, 1), "--b": expression("uniform", 0, 1)}, 1),
        "acc",
        "maximize",
        40,
    )
    trials = [
        trial(number, terms.parameters(number), float(terms.parameters(number)["--a"]))
        for number in range(40)
    ]
    found = importances(terms, trials)
    assert found["--a"] > 0.8 > found["--b"]
    assert importances(terms, trials[:7]) == {}
