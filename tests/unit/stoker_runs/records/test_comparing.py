"""Comparing runs, and drawing their metrics."""

import math
from pathlib import Path

from tests.unit.stoker_runs.records.conftest import MakeRun

from stoker_runs.records.comparing import compare_runs
from stoker_runs.records.exports import curves_of, downsample
from stoker_runs.records.snapshots import SnapshotStore, git_properties
from stoker_runs.records.states import Status


def test_differences_are_named_by_kind(make_run: MakeRun, tmp_path: Path) -> None:
    """The kinds are results, metrics, parameters, packages and code; equal values are left out."""
    snapshots = SnapshotStore(tmp_path / "snapshots")
    digests = []
    for text in ("a", "bb"):
        source = tmp_path / text
        source.mkdir()
        (source / "train.py").write_text(text)
        (source / "same.py").write_text("same")
        digests.append(snapshots.take(source).digest)
    one = make_run(1, arguments=("--lr", "0.1", "-v"), snapshot=digests[0], metrics=[{"k": "acc", "v": 0.5}])
    two = make_run(2, arguments=("--lr=-3", "x"), snapshot=digests[1], status=Status.FAILED)
    (one.environment / "got.txt").write_text("# as asked\nnumpy==2.0\nscipy==1.1\n")
    (two.environment / "got.txt").write_text("numpy==1.9\nscipy==1.1\n")
    found = {(each.group, each.name): each.values for each in compare_runs([one, two], snapshots.folder)}
    assert found[("result", "status")] == ("Completed", "Failed")
    assert found[("metric", "acc")] == ("0.5", "")
    assert found[("parameter", "--lr")] == ("0.1", "-3")
    assert found[("parameter", "-v")] == ("yes", "")
    assert found[("package", "numpy")] == ("2.0", "1.9")
    assert {name for group, name in found if group == "code"} == {"train.py"}
    assert compare_runs([one, one], snapshots.folder) == []


def test_changed_variables_are_compared_without_showing_their_values(
    make_run: MakeRun, tmp_path: Path
) -> None:
    """Their values may be secrets."""
    one = make_run(1, variables={"TOKEN": "hunter2", "SAME": "1"})
    two = make_run(2, variables={"TOKEN": "hunter3", "SAME": "1"})
    (found,) = compare_runs([one, two], tmp_path)
    assert (found.group, found.name) == ("parameter", "variable TOKEN")
    assert len(set(found.values)) == 2
    assert "hunter" not in repr(found)


def test_a_point_is_at_its_step_or_place() -> None:
    """The script gives the steps; a value that is not finite has a place and no point."""
    lines = [
        {"k": "loss", "v": 1, "s": 10},
        {"k": "loss", "v": "NaN", "s": 20},
        {"k": "loss", "v": 0.5, "s": 30},
    ]
    assert curves_of(lines) == {"loss": ([10.0, 30.0], [1.0, 0.5], True)}
    plain = [
        {"k": "acc", "v": 0.1},
        {"k": "acc", "v": "Infinity"},
        {"k": "acc", "v": 0.3},
        {"k": "x", "v": "t", "y": "text"},
    ]
    assert curves_of(plain) == {"acc": ([0.0, 2.0], [0.1, 0.3], False)}


def test_a_long_curve_keeps_its_extremes() -> None:
    """Fifty thousand values become two thousand, and a single peak is among them."""
    values = [math.sin(i / 1e4) for i in range(50_000)]
    values[12_345] = 50.0
    places, kept, _ = downsample(([float(i) for i in range(len(values))], values, True))
    assert len(kept) <= 2000
    assert max(kept) == 50.0
    assert places == sorted(places)


def test_a_folder_outside_of_git_has_no_commit(tmp_path: Path) -> None:
    """Its run has no properties of git."""
    assert git_properties(tmp_path) == {}
