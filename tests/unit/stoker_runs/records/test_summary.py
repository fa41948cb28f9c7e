"""The index's summary of a run's numbers, which it reads without an object for each line."""

import math
from pathlib import Path

import pytest

from stoker_run.json_files import read_json_lines
from stoker_runs.records.exports import curves_of
from stoker_runs.records.summary import MetricStatistics, _add, logged_values, metric_statistics

LINES = [
    '{"t":1,"k":"loss","v":3.5,"a":1}',
    '{"t":1,"k":"loss","v":-1e-3,"s":2,"a":1,"r":1}',
    '{"t":1,"k":"loss","v":"NaN","a":1}',
    '{"t":1,"k":"loss","v":1e999,"a":1}',
    '{"t": 1, "k": "loss", "v": 2, "a": 1}',
    '{"t":1,"k":"größe","v":7,"a":1}',
    '{"t":1,"k":"say \\"x\\"","v":true,"a":1}',
    '{"t":1,"k":"huge","v":1' + "0" * 400 + ',"a":1}',
    '{"t":1,"k":"list","v":[1],"y":"list","a":1}',
    '{"t":1,"k":"text","v":"x","y":"text","a":1}',
    '{"t":1,"k":"zero","v":007,"a":1}',
    '{"t":1,"k":"torn","v":4',
    "",
    '{"t":1,"k":"loss","v":2.25,"s":9,"d":"behind","a":1}',
    '{"t":1,"k":"acc","v":0,"a":1}',
]


def of(path: Path) -> dict[str, tuple[float, ...]]:
    return {
        name: (one.last, one.least, one.most, one.count)
        for name, one in metric_statistics([path, path]).items()
    }


@pytest.mark.parametrize("chunk_bytes", [1 << 20, 64, 7])
def test_all_lines_count_as_they_do_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    """Whichever way a line is read, and wherever a chunk of its file ends; a last line without its end does not."""
    monkeypatch.setattr("stoker_runs.records.folder._CHUNK_BYTES", chunk_bytes)
    path = tmp_path / "metrics.jsonl"
    path.write_text("\n".join(LINES) + '\n{"t":1,"k":"acc","v":5,"a":1}', encoding="utf-8")
    expected: dict[str, MetricStatistics] = {}
    for line in (*read_json_lines(path), *read_json_lines(path)):
        _add(expected, line)
    assert of(path) == {name: (one.last, one.least, one.most, one.count) for name, one in expected.items()}
    assert of(path)["loss"] == (2.25, -0.001, 3.5, 12)
    assert of(path)["acc"] == (0.0, 0.0, 0.0, 2)
    assert sorted(of(path)) == ["acc", "größe", "list", "loss", 'say "x"']


STRUCTURES = [
    '{"t":1,"k":"fib","v":[0,1,1],"y":"list","a":1}',
    '{"t":1,"k":"fib","v":[2,"NaN",3],"y":"list","a":1}',
    '{"t":1,"k":"row","v":{"x":1,"name":"a"},"y":"row","a":1}',
    '{"t":1,"k":"row","v":{"x":2.5,"name":"b"},"y":"row","a":1}',
    '{"t":1,"k":"table","v":{"y":[1,2],"z":7},"y":"table","a":1}',
    '{"t":1,"k":"kind","v":"svm","y":"text","a":1}',
    '{"t":1,"k":"plot","v":"plot.png","y":"image","a":1}',
    '{"t":1,"k":"empty","v":[],"y":"list","a":1}',
    '{"t":1,"k":"odd","v":7,"y":"list","a":1}',
]


def test_lists_rows_and_tables_are_numbers_too(tmp_path: Path) -> None:
    """Each column of a row or table counts by its own name; texts are among the values alone."""
    path = tmp_path / "metrics.jsonl"
    path.write_text("\n".join(STRUCTURES) + "\n")
    numbers = {
        name: (one.last, one.least, one.most, one.count) for name, one in metric_statistics([path]).items()
    }
    assert numbers == {
        "fib": (3.0, 0.0, 3.0, 6),
        "row.x": (2.5, 1.0, 2.5, 2),
        "table.y": (2.0, 1.0, 2.0, 2),
        "table.z": (7.0, 7.0, 7.0, 1),
    }
    assert logged_values([path]) == {
        "fib": [0, 1, 1, 2, "NaN", 3],
        "row.x": [1, 2.5],
        "row.name": ["a", "b"],
        "table.y": [1, 2],
        "table.z": [7],
        "kind": ["svm"],
        "empty": [],
        "odd": [7],
    }
    curves = curves_of(read_json_lines(path))
    assert curves["fib"] == ([0.0, 1.0, 2.0, 3.0, 5.0], [0.0, 1.0, 1.0, 2.0, 3.0], False)
    assert curves["row.x"] == ([0.0, 1.0], [1.0, 2.5], False)
    assert sorted(curves) == ["fib", "row.x", "table.y", "table.z"]


def test_numbers_that_no_one_can_compare_are_counted(tmp_path: Path) -> None:
    """The newest is not finite, and there is neither a least nor a greatest one."""
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"t":1,"k":"loss","v":-1e999,"a":1}\n' * 3)
    (found,) = metric_statistics([path]).values()
    assert (found.last, found.count, math.isnan(found.least), math.isnan(found.most)) == (
        -math.inf,
        3,
        True,
        True,
    )
