"""`azureml.monitoring`: data that a script collects itself, and their files."""

from __future__ import annotations

import csv
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from stoker.collecting.model_data import ModelData, ModelDataFiles, Series
from stoker.settings.collection import CollectionSettings, is_sampled
from stoker.system.logs import SELF_CHECK, requests_in_log
from stoker_azure import monitoring
from stoker_azure.monitoring import BasicCorrelationContext, Collector, ModelDataCollector

NOON_S = 1_772_366_400.0  # 2026-03-01T12:00:00Z
DAY_S = 86_400


class Collecting:
    """A process of a service that collects; nothing is written before `rows` asks."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.use(CollectionSettings(), monkeypatch)

    def use(self, settings: CollectionSettings, monkeypatch: pytest.MonkeyPatch) -> None:
        """Collect with these settings from now on."""
        self.files = ModelDataFiles(self.folder, settings.max_mb << 20)
        self.data = ModelData("served", 7, settings, self.files, lambda: NOON_S)
        monkeypatch.setattr(monitoring, "model_data", lambda: self.data)

    def rows(self, designation: str = "inputs", model: str = "best_model") -> list[list[str]]:
        """The lines of the only file of a designation."""
        self.data.write_queued()
        (file,) = self.folder.glob(f"{model}/7/{designation}/2026/03/01/{designation}-*.csv")
        return list(csv.reader(file.read_text().splitlines()))


@pytest.fixture
def collecting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Collecting]:
    """A process of a service that collects."""
    collecting = Collecting(tmp_path / "modeldata", monkeypatch)
    yield collecting
    collecting.files.close()


def test_rows_lie_where_azure_has_them(collecting: Collecting) -> None:
    """Rows become lines of MODEL/VERSION/DESIGNATION/YYYY/MM/DD, below the names of the features."""
    inputs = ModelDataCollector("best_model", designation="inputs", feature_names=["age", "job"])
    with requests_in_log(b"r-1"):
        context = inputs.collect(np.array([[1.5, 2], [3, 4]]))
    header, *rows = collecting.rows()
    assert header == ["$Timestamp", "$RequestId", "$CorrelationId", "age", "job"]
    assert [row[3:] for row in rows] == [["1.5", "2.0"], ["3.0", "4.0"]]
    assert context is not None
    assert rows[0][:3] == rows[1][:3] == ["2026-03-01T12:00:00.000+00:00", "r-1", context["$CorrelationId"]]


FRAME = pd.DataFrame({"a": [1, 2], "b": ["x", "y, z"]})


@pytest.mark.parametrize(
    ("data", "names", "expected"),
    [
        pytest.param([1, 2], ["p", "q"], [["p", "q"], ["1", "2"]], id="a flat list of all features is a row"),
        pytest.param(np.array([0.5, 1]), ["p"], [["p"], ["0.5"], ["1.0"]], id="a vector has a row for each item"),
        pytest.param([["a", None]], None, [["0", "1"], ["a", ""]], id="no names"),
        pytest.param(FRAME, None, [["a", "b"], ["1", "x"], ["2", "y, z"]], id="the columns of a frame"),
        pytest.param(FRAME, ["c", "d"], [["c", "d"], ["1", "x"], ["2", "y, z"]], id="names for a frame"),
        pytest.param([{"x": 1, "y": 2}, {"y": 3}], None, [["x", "y"], ["1", "2"], ["", "3"]], id="records"),
        pytest.param(["\ud800"], ["text"], [["text"], ["\\ud800"]], id="half of a character"),
        pytest.param("good", ["label"], [["label"], ["good"]], id="a text is one value"),
        pytest.param(np.zeros((1, 2, 2)), None, [["0", "1", "2", "3"], ["0.0"] * 4], id="more dimensions"),
    ],
)  # fmt: skip
def test_collected_data_becomes_rows_of_columns(
    collecting: Collecting, data: Any, names: list[str] | None, expected: list[list[str]]
) -> None:
    """Lists, arrays, frames, records and single values become rows of columns."""
    ModelDataCollector("best_model", "inputs", names).collect(data)
    assert [row[3:] for row in collecting.rows()] == expected


def test_rows_of_several_collectors_can_be_joined(collecting: Collecting) -> None:
    """Predictions that were given the correlations of their inputs have the same id; a later request has its own."""
    inputs = ModelDataCollector("best_model", "inputs")
    predictions = ModelDataCollector("best_model", "predictions")
    with requests_in_log(b"r-1"):
        correlations = inputs.collect([[1]], user_correlation_id="loan 5")
        result = np.array([0.5])
        assert predictions.add_correlations(result, correlations) is result
        predictions.collect(result)
        predictions.add_correlations(result, correlations)
    with requests_in_log(b"r-2"):
        predictions.collect(result)
    assert collecting.rows()[1][1:] == ["r-1", "loan 5", "1"]
    _, first, second = collecting.rows("predictions")
    assert first[1:] == ["r-1", "loan 5", "0.5"]
    assert second[1] == "r-2"
    assert second[2] != "loan 5"


def test_the_settings_of_collect_hold_for_scripts_too(
    collecting: Collecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are not sampled, of no collection, or of the self-check are not collected."""
    collecting.use(CollectionSettings(sample_rate=0.5, collections=("outputs",)), monkeypatch)
    ids = [f"r-{number}".encode() for number in range(20)]
    inputs, predictions = (ModelDataCollector("best_model", name) for name in ("inputs", "predictions"))
    for request_id in [SELF_CHECK, *ids]:
        with requests_in_log(request_id):
            inputs.collect([[1]])
            predictions.collect([[1]])
    sampled = [request_id.decode() for request_id in ids if is_sampled(request_id, 0.5)]
    assert 0 < len(sampled) < len(ids)
    assert [row[1] for row in collecting.rows("predictions")[1:]] == sampled
    assert not (collecting.folder / "best_model/7/inputs").exists()


def test_rows_of_another_width_do_not_fail_the_request(
    collecting: Collecting, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests are answered although names do not fit: the log says it."""
    ModelDataCollector("best_model", "inputs", ["a", "b"]).collect([[1, 2, 3]])
    assert "a row that a script collects has 3 values, and there are 2 columns (a, b)" in caplog.text
    collecting.data.write_queued()
    assert not collecting.folder.exists()


def test_all_rows_of_a_collector_have_one_header(collecting: Collecting) -> None:
    """Records with other keys than the first ones go into the same file, and not each into one of its own."""
    collector = ModelDataCollector("best_model", "inputs")
    collector.collect([])
    for record in ({"a": 1}, {"b": 2, "a": 3}, {"b": 4}):
        collector.collect([record])
    assert [row[3:] for row in collecting.rows()] == [["a"], ["1"], ["3"], [""]]


def test_names_of_a_script_stay_in_the_folder(collecting: Collecting) -> None:
    """A model name with slashes or dots cannot lead out of the service's folder."""
    ModelDataCollector("../../x", "general", collection_name="a/b", model_version="..").collect([1])
    collecting.data.write_queued()
    (file,) = collecting.folder.rglob("*.csv")
    assert file.relative_to(collecting.folder).parts[:3] == ("__.._x", "_", "general")
    assert file.name.startswith("a_b-")


def test_nothing_is_collected_unless_the_service_does(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without `collect` all methods do nothing, and the log says so once."""
    monkeypatch.setattr(monitoring, "was_reported", threading.Event())
    caplog.set_level(logging.INFO, logger="stoker_azure.monitoring")
    first, second = ModelDataCollector("m", "inputs"), ModelDataCollector("m", "predictions")
    assert first.collect([[1]]) is None
    assert second.add_correlations([2], None) == [2]
    assert Collector(name="model_inputs").collect(FRAME).get_id()
    assert [record.message for record in caplog.records] == [
        "ModelDataCollector collects nothing: collecting is off for this service (stoker serve --collect, or "
        "collect: true)"
    ]


def test_frames_of_a_collector_lie_beside_them(collecting: Collecting) -> None:
    """`Collector` writes the frames of a request into files of the served model, joined by their context."""
    inputs, outputs = Collector(name="model_inputs"), Collector(name="model_outputs")
    with requests_in_log(b"r-1"):
        context = inputs.collect(FRAME)
        assert outputs.collect(pd.DataFrame({"p": [0.5, 1]}), context) is context
        assert outputs.collect(FRAME[["b"]], BasicCorrelationContext(id="loan 5")).get_id() == "loan 5"
    header, *rows = collecting.rows("model_inputs", "served")
    assert header == ["$Timestamp", "$RequestId", "$CorrelationId", "a", "b"]
    assert [row[1:] for row in rows] == [
        ["r-1", context.get_id(), "1", "x"],
        ["r-1", context.get_id(), "2", "y, z"],
    ]
    # Frames with other columns have a file of their own.
    files = collecting.folder.glob("served/7/model_outputs/2026/03/01/model_outputs-*.csv")
    found = sorted(list(csv.reader(file.read_text().splitlines()))[1][2:] for file in files)
    assert found == sorted([[context.get_id(), "0.5"], ["loan 5", "x"]])


def test_a_collector_heeds_the_settings(collecting: Collecting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are no output, not sampled, or of the self-check are left out, and have a context all the same."""
    collecting.use(CollectionSettings(collections=("outputs",)), monkeypatch)
    inputs, outputs = Collector(name="model_inputs"), Collector(name="model_outputs")
    for request_id in (SELF_CHECK, b"r-1"):
        with requests_in_log(request_id):
            outputs.collect(FRAME, inputs.collect(FRAME))
    assert [row[1] for row in collecting.rows("model_outputs", "served")[1:]] == ["r-1", "r-1"]
    assert not (collecting.folder / "served/7/model_inputs").exists()


def test_collector_reports_wrong_arguments(collecting: Collecting) -> None:
    """It raises, or tells the function that it was given and goes on."""
    errors: list[Exception] = []
    with pytest.raises(TypeError, match="takes data frames of pandas, not list"):
        Collector(name="model_inputs").collect([[1]])
    assert Collector(name="model_inputs", on_error=errors.append).collect([[1]]).get_id()
    with pytest.raises(ValueError, match="needs a name"):
        Collector(name="")
    Collector(name="", on_error=errors.append).collect(FRAME)
    assert [type(error) for error in errors] == [TypeError, ValueError]


def test_files_end_with_the_day_and_the_oldest_make_room(tmp_path: Path) -> None:
    """A new day has a new file; beyond the bound the file that was written to least lately goes."""
    series = Series("m", "1", "inputs", "inputs", b"a\n")
    files = ModelDataFiles(tmp_path, 8000)
    for day in range(9):
        files.write(series, NOON_S + day * DAY_S, b"1" * 999 + b"\n")
    files.close()
    days = sorted(path.parent.name for path in tmp_path.rglob("*.csv"))
    assert days[-1] == "09"
    assert "01" not in days
    assert not (tmp_path / "m/1/inputs/2026/03/01").exists()
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.csv")) <= 8100
    assert {path.read_bytes()[:2] for path in tmp_path.rglob("*.csv")} == {b"a\n"}


def test_a_full_file_is_followed_by_another(tmp_path: Path) -> None:
    """A file of an eighth of the room is closed, so that old ones can be removed."""
    series = Series("m", "1", "inputs", "inputs", b"a\n")
    files = ModelDataFiles(tmp_path, 8000)
    for _ in range(3):
        files.write(series, NOON_S, b"1" * 599 + b"\n")
    files.close()
    assert sorted(path.stat().st_size for path in tmp_path.rglob("*.csv")) == [602, 1202]


def test_queued_records_are_written_at_the_end(tmp_path: Path) -> None:
    """The writing thread empties its queue before it ends."""
    data = ModelData("m", 1, CollectionSettings(), ModelDataFiles(tmp_path, 1 << 24))
    data.start()
    data.enqueue(Series("m", "1", "inputs", "inputs", b"a\n"), NOON_S, b"1\n")
    data.close()
    (file,) = tmp_path.rglob("*.csv")
    assert file.read_bytes() == b"a\n1\n"


def test_unwritable_lines_are_logged_and_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A folder that cannot be made loses rows, not the process, and the log says so once a minute."""
    (tmp_path / "file").touch()
    data = ModelData("m", 1, CollectionSettings(), ModelDataFiles(tmp_path / "file" / "x", 1 << 24))
    series = Series("m", "1", "inputs", "inputs", b"a\n")
    for _ in range(2):
        data.enqueue(series, NOON_S, b"1\n")
    data.write_queued()
    assert caplog.text.count("rows that the script has collected are lost: ") == 1
