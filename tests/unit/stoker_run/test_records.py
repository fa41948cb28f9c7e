"""Metrics and events as lines, and read back."""

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker_run.json_files import Appender, read_json, read_json_lines, replace_json
from stoker_run.records import Recorder, outside_name, read_events


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(tmp_path / "attempt", tmp_path / "work", attempt=2, rank=1)


def lines(recorder: Recorder) -> list[dict[str, Any]]:
    return [{**line, "t": 0} for line in read_json_lines(recorder.folder / "metrics.jsonl")]


def test_a_line_is_as_the_contract_says(recorder: Recorder) -> None:
    """Time, name, value, step, attempt, rank, description; nothing that was not given."""
    recorder.number("loss", 0.3, step=1)
    recorder.number('a "name"\n', np.float32(0.5), description="of é")
    assert lines(recorder) == [
        {"t": 0, "k": "loss", "v": 0.3, "s": 1, "a": 2, "r": 1},
        {"t": 0, "k": 'a "name"\n', "v": 0.5, "d": "of é", "a": 2, "r": 1},
    ]


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (math.nan, "NaN"),
        (math.inf, "Infinity"),
        (-math.inf, "-Infinity"),
        (np.float64("nan"), "NaN"),
        (1e300, 1e300),
        (3, 3),
        (True, True),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (np.array([[2.5]]), 2.5),
        ("text", "text"),
    ],
)
def test_every_value_is_json_and_comes_back(value: Any, written: Any, recorder: Recorder) -> None:
    """Also those that JSON has no form for."""
    recorder.number("m", value)
    (line,) = lines(recorder)
    assert line["v"] == written
    assert type(line["v"]) is type(written)
    read = recorder.metrics()["m"]
    expected = value.item() if isinstance(value, np.generic | np.ndarray) else value
    assert read == expected or (math.isnan(read) and math.isnan(expected))


def test_value_that_cannot_be_logged_is_logged_as_its_repr(
    recorder: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such a value is logged as its repr, with a line on stderr."""
    recorder.number("m", {"a": 1})
    assert recorder.metrics() == {"m": "{'a': 1}"}
    assert capsys.readouterr().err == "stoker_run: a value of dict is logged as its repr\n"


def test_metrics_read_back_as_azure_gives_them(recorder: Recorder) -> None:
    """Once: the value; several times: the list; rows and tables: columns; lists one after the other."""
    recorder.number("once", 1)
    for value in (1.0, math.inf):
        recorder.number("twice", value)
    recorder.structure("list", "list", np.arange(2))
    recorder.structure("list", "list", (5,))
    recorder.structure("one", "list", [1])
    recorder.structure("row", "row", {"x": 1, "y": 2})
    recorder.structure("rows", "row", {"x": 1})
    recorder.structure("rows", "row", {"x": np.float32(2)})
    recorder.structure("table", "table", {"x": [1, math.inf], "y": np.array([3, 4])})
    recorder.structure(
        "matrix", "confusion_matrix", {"schema_type": "confusion_matrix", "data": {"m": [[1]]}}
    )
    assert recorder.metrics() == {
        "once": 1,
        "twice": [1.0, math.inf],
        "list": [0, 1, 5],
        "one": [1],
        "row": {"x": 1, "y": 2},
        "rows": {"x": [1, 2.0]},
        "table": {"x": [1, math.inf], "y": [3, 4]},
        "matrix": {"schema_type": "confusion_matrix", "data": {"m": [[1]]}},
    }


def test_a_torn_line_is_no_line(tmp_path: Path) -> None:
    """An unfinished line is read when it is whole, a line that is no JSON is skipped, an offset begins anew."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"a":1}\n{"a":\n[1]\n{"a":2}\n{"a":3}')
    assert list(read_json_lines(path)) == [{"a": 1}, {"a": 2}]
    with path.open("ab") as file:
        file.write(b"\n")
    assert list(read_json_lines(path, offset=26)) == [{"a": 3}]
    assert list(read_json_lines(tmp_path / "missing")) == []


def test_a_full_disk_loses_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half a line is written, then none; when there is room again all are there, in their order."""
    real = os.write
    room = [4]

    def write(file: int, data: bytes) -> int:
        taken = min(room[0], len(data))
        if taken == 0:
            raise OSError(28, "No space left on device")
        room[0] -= taken
        return real(file, data[:taken])

    appender = Appender(tmp_path / "metrics.jsonl")
    monkeypatch.setattr(os, "write", write)
    for number in range(3):
        appender.append(b'{"n":%d}\n' % number)
    room[0] = 1000
    appender.append(b'{"n":3}\n')
    appender.close()
    assert [line["n"] for line in read_json_lines(tmp_path / "metrics.jsonl")] == [0, 1, 2, 3]
    assert capsys.readouterr().err.count("\n") == 1


def test_events_leave_tags_properties_and_parameters(recorder: Recorder) -> None:
    """The last tag counts, None removes it; the first property counts."""
    for kind, key, value in (
        ("tag", "a", "1"),
        ("tag", "b", "2"),
        ("tag", "a", None),
        ("property", "p", "1"),
        ("property", "p", "2"),
        ("param", "lr", 0.1),
        ("status", None, "Completed"),
    ):
        recorder.event(kind, key, value)
    assert read_events(recorder.events()) == {"tag": {"b": "2"}, "property": {"p": "1"}, "param": {"lr": 0.1}}


def test_files_lie_where_their_names_say(recorder: Recorder, tmp_path: Path) -> None:
    """Below outputs/ and logs/ in the working directory, else beside; never outside."""
    source = tmp_path / "model.bin"
    source.write_bytes(b"weights")
    assert recorder.file("outputs/a/model.bin", source) == tmp_path / "work" / "outputs" / "a" / "model.bin"
    assert recorder.file("/plots//x.png", source) == tmp_path / "attempt" / "files" / "plots" / "x.png"
    assert (
        recorder.file("outputs/a/model.bin", tmp_path / "work/outputs/a/model.bin").read_bytes() == b"weights"
    )
    for name in ("", "/", "a/../../b", "..", "a\0b", "..\\b"):
        with pytest.raises(ValueError, match="is no name of a file of a run"):
            outside_name(name)


def test_a_file_is_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it cannot be written it is as it was, and nothing lies beside it."""
    path = tmp_path / "exit.json"
    replace_json(path, {"a": 1})
    monkeypatch.setattr(os, "fsync", lambda _file: (_ for _ in ()).throw(OSError("disk")))
    with pytest.raises(OSError, match="disk"):
        replace_json(path, {"a": 2})
    assert read_json(path) == json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]
