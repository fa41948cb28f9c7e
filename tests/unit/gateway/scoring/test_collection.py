"""Collecting requests and answers: what is kept, where it lies, what is dropped, and what it may cost."""

import base64
import json
import re
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.puppets import metric_memory

from stoker.collecting import record_files
from stoker.collecting.collection import CollectionSettings, read_collection
from stoker.collecting.record_files import RecordFiles, last_records
from stoker.gateway.scoring import collector as collector_module
from stoker.gateway.scoring.collector import LARGEST_BODY_BYTES, Collector

NOON_S = datetime(2026, 3, 1, 12, 34, 56, 789000, UTC).timestamp()
HOUR_S = 3600
ROOMY = 1 << 30


# --- settings ---


def test_true_means_everything() -> None:
    """`collect: true` keeps all inputs and outputs as JSON lines within a gibibyte; false keeps nothing."""
    for value in (True, "true", {}):
        assert read_collection(value) == CollectionSettings(1.0, "jsonl", 1024, ("inputs", "outputs"))
    assert read_collection(False) is False


def test_a_mapping_says_how() -> None:
    """Each setting can be given, and survives the way through JSON."""
    mapping = {"sample_rate": 0.25, "format": "parquet", "max_mb": 64, "collections": ["outputs"]}
    made = read_collection(mapping)
    assert made == CollectionSettings(0.25, "parquet", 64, ("outputs",))
    assert made
    assert read_collection(json.loads(json.dumps(made.to_json()))) == made


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("often", "must be true or false, or hold sample_rate, format, max_mb, collections by name"),
        ({"sample_rat": 1}, "has no 'sample_rat'; did you mean sample_rate?"),
        ({"rate": 1}, "has no 'rate'; did you mean sample_rate?"),
        ({"sample_rate": 0}, "has a sample_rate that is not above 0 and at most 1"),
        ({"sample_rate": 1.5}, "has a sample_rate"),
        ({"sample_rate": True}, "has a sample_rate"),
        ({"format": "csv"}, "has a format that is none of jsonl, parquet"),
        ({"max_mb": 15}, "has a max_mb that is not a whole number between 16"),
        ({"max_mb": 16.5}, "has a max_mb"),
        ({"collections": []}, "has collections that are not a list of inputs, outputs"),
        ({"collections": ["inputs", "scores"]}, "has collections"),
        ({"collections": "inputs"}, "has collections"),
    ],
)
def test_bad_settings_say_what_is_wrong(value: Any, problem: str) -> None:
    """What makes no sense is refused, in words that end the sentence that settings begin."""
    with pytest.raises(ValueError, match=re.escape(problem)):
        read_collection(value)


# --- files ---


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def line(content: Any) -> bytes:
    return json.dumps(content).encode() + b"\n"


def test_an_hour_has_a_folder_and_a_writer_a_file(tmp_path: Path) -> None:
    """Lines of one hour go into one private file below the model's version; the next hour has its own."""
    files = RecordFiles(tmp_path / "m", 3, "jsonl", max_bytes=ROOMY, writers=2)
    files.write(NOON_S, [b"1\n", b"2\n"])
    files.write(NOON_S + 60, [b"3\n"])
    files.write(NOON_S + HOUR_S, [b"4\n"])
    files.close()
    first, second = files_in(tmp_path / "m")
    assert re.fullmatch(r"3/2026/03/01/12/3456-[0-9a-f]{32}\.jsonl", first)
    assert re.fullmatch(r"3/2026/03/01/13/3456-[0-9a-f]{32}\.jsonl", second)
    assert (tmp_path / "m" / first).read_bytes() == b"1\n2\n3\n"
    assert (tmp_path / "m" / second).read_bytes() == b"4\n"
    assert (tmp_path / "m" / first).stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "m" / "3").stat().st_mode & 0o777 == 0o700


def test_lines_are_in_the_file_before_it_is_closed(tmp_path: Path) -> None:
    """A writer that is killed has lost nothing that was written."""
    files = RecordFiles(tmp_path, 1, "jsonl", max_bytes=ROOMY, writers=1)
    files.write(NOON_S, [b"1\n"])
    (path,) = tmp_path.rglob("*.jsonl")
    assert path.read_bytes() == b"1\n"
    files.close()


def test_an_idle_writer_closes_the_file_of_a_past_hour(tmp_path: Path) -> None:
    """A file is not held open until the next request, which may come days later."""
    files = RecordFiles(tmp_path, 1, "jsonl", max_bytes=ROOMY, writers=1)
    files.write(NOON_S, [b"1\n"])
    files.close_past(NOON_S + 1)
    files.write(NOON_S + 2, [b"2\n"])
    assert len(files_in(tmp_path)) == 1
    files.close_past(NOON_S + HOUR_S)
    files.write(NOON_S + 3, [b"3\n"])
    assert len(files_in(tmp_path)) == 2
    files.close()


def test_the_oldest_files_make_room(tmp_path: Path) -> None:
    """All files of a model together, of every version and writer, keep the bound; emptied folders go too."""
    max_bytes = 80_000
    other = tmp_path / "1" / "2026" / "02" / "28" / "23" / "0000-1-1.jsonl"
    other.parent.mkdir(parents=True)
    other.write_bytes(bytes(30_000))
    files = RecordFiles(tmp_path, 2, "jsonl", max_bytes=max_bytes, writers=2)
    for minute in range(40):
        files.write(NOON_S + 60 * minute, [b"x" * 2999 + b"\n"])
        total = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
        assert total <= max_bytes
    files.close()
    assert not (tmp_path / "1").exists()
    kept = sorted(path.name[:4] for path in (tmp_path / "2" / "2026" / "03" / "01").glob("*/*"))
    # 2 of 16 parts of 5000 bytes are kept free, one for each writer; each part holds one record of 3000.
    assert len(kept) == (max_bytes - 2 * 5000) // 3000 + 1
    # The newest: 40 records in minutes 34 to 73 of the hour, so up to 13:13.
    assert (kept[0], kept[-1]) == ("0056", "5956")
    assert not list(tmp_path.glob("2/2026/03/01/12/3456*"))


def test_torn_lines_are_skipped(tmp_path: Path) -> None:
    """What a killed writer left unfinished does not hide the records before it, nor those of its successor."""
    files = RecordFiles(tmp_path, 1, "jsonl", max_bytes=ROOMY, writers=1)
    files.write(NOON_S, [line({"time": "a", "n": 1}), b'{"time": "b", "n"'])
    files.close()
    files.write(NOON_S + 1, [line({"time": "c", "n": 3})])
    files.close()
    assert [record["n"] for record in last_records(tmp_path, 10)] == [1, 3]


def test_the_last_records_of_all_writers(tmp_path: Path) -> None:
    """Records of writers that share an hour are put in order; older hours are read only if they are needed."""
    for offset in (0, 1):
        files = RecordFiles(tmp_path, 1, "jsonl", max_bytes=ROOMY, writers=2)
        for number in range(offset, 10, 2):
            files.write(NOON_S, [line({"time": f"t{number}", "n": number})])
        files.close()
    unreadable = tmp_path / "1" / "2026" / "03" / "01" / "11" / "0000-1-1.jsonl"
    unreadable.parent.mkdir()
    unreadable.write_bytes(b"no JSON\n")
    assert [record["n"] for record in last_records(tmp_path, 4)] == [6, 7, 8, 9]
    assert [record["n"] for record in last_records(tmp_path, 10)] == list(range(10))
    assert last_records(tmp_path, 0) == []
    assert last_records(tmp_path / "nothing", 5) == []


def test_after_a_failure_a_new_file_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the disk refuses a line, nothing follows what may be half a line."""
    files = RecordFiles(tmp_path, 1, "jsonl", max_bytes=ROOMY, writers=1)
    files.write(NOON_S, [line({"time": "1"})])

    def refuse(file: Any, content: bytes) -> None:
        file.write(content[:3])
        raise OSError("no space left")

    with monkeypatch.context() as full:
        full.setattr(record_files, "write_all", refuse)
        with pytest.raises(OSError, match="no space left"):
            files.write(NOON_S, [line({"time": "2"})])
    files.write(NOON_S, [line({"time": "3"})])
    files.close()
    assert [record["time"] for record in last_records(tmp_path, 10)] == ["1", "3"]


# --- the collector ---


class Scene:
    """A collector whose writer works when the test says so, and what it has counted and written."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.now_s = NOON_S
        self.memory = metric_memory()
        made = CollectionSettings(**settings)
        files = RecordFiles(folder, 7, made.format, max_bytes=made.max_mb << 20, writers=1)
        self.files = files
        self.collector = Collector("digits", 7, made, files, self.memory.page(0).model(0), lambda: self.now_s)

    def ask(
        self,
        body: bytes,
        answer: bytes = b"[1]",
        status: int = 200,
        request_id: bytes = b"id",
        content_type: bytes = b"",
    ) -> None:
        """One request and its answer."""
        self.collector.observe(body, content_type, request_id, lambda *_: None)(status, b"", answer)

    def records(self) -> list[dict[str, Any]]:
        """What is written, after the queue has been."""
        self.collector.write_queued()
        self.files.close()
        return last_records(self.folder, 1_000_000)

    def counts(self) -> tuple[int, int, int]:
        """Records written, dropped for a full queue, dropped for the disk."""
        totals = self.memory.totals().model(0)
        dropped = totals.collection_dropped()
        return totals.collected, dropped["queue_full"], dropped["write_failed"]


def test_a_record_says_what_was_asked_and_answered(tmp_path: Path) -> None:
    """A record has time, id, model, version, status, lengths, and the JSON of both bodies as JSON."""
    scene = Scene(tmp_path)
    scene.ask(
        b'{"data":\n [[1,\r\n 2.50]]}', b"[3,4]", request_id=b"caf\xe9", content_type=b"application/json"
    )
    assert scene.records() == [
        {
            "time": "2026-03-01T12:34:56.789Z",
            "request_id": "café",
            "model": "digits",
            "version": 7,
            "status": 200,
            "input_bytes": 24,
            "output_bytes": 5,
            "content_type": "application/json",
            "inputs": {"data": [[1, 2.5]]},
            "outputs": [3, 4],
        }
    ]
    assert scene.counts() == (1, 0, 0)
    (path,) = tmp_path.rglob("*.jsonl")
    assert path.read_bytes().count(b"\n") == 1
    assert b"2.50" in path.read_bytes(), "the body is kept as it was written"


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        (b"no JSON", "no JSON"),
        (b'{"data": NaN}', '{"data": NaN}'),
        ("ä\nö".encode(), "ä\nö"),
        (b"", ""),
        (b"\xff\xd8\xff\0", {"b64": base64.b64encode(b"\xff\xd8\xff\0").decode()}),
        (b'"text"', "text"),
        (b"[" * 3000 + b"]" * 3000, "[" * 3000 + "]" * 3000),
        (b"\xef\xbb\xbf{}", {}),
        (b"1" * 400, "1" * 400),
    ],
)
def test_body_that_is_not_json_is_collected_as_text_or_base64(tmp_path: Path, body: bytes, kept: Any) -> None:
    """Text is kept as a string, other bytes as base64, and each record stays one line of strict JSON."""
    scene = Scene(tmp_path)
    scene.ask(body, b"[NaN]", 400)
    (record,) = scene.records()
    assert (record["inputs"], record["outputs"], record["status"]) == (kept, "[NaN]", 400)


def test_the_caller_is_answered_first(tmp_path: Path) -> None:
    """The record is offered after the answer has gone out, and never instead of it."""
    scene = Scene(tmp_path)
    events: list[Any] = []

    def respond(status: int, lines: bytes, body: bytes) -> None:
        events.append((status, lines, body, len(scene.records())))

    watched = scene.collector.observe(b"[]", b"", b"id", respond)
    watched(200, b"a: b\r\n", b"[1]")
    assert events == [(200, b"a: b\r\n", b"[1]", 0)]
    assert len(scene.records()) == 1


def test_only_what_is_asked_for_is_kept(tmp_path: Path) -> None:
    """With one collection the other body is not in the record, only its length."""
    scene = Scene(tmp_path, collections=("outputs",))
    scene.ask(b"[1, 2]", b"[3]")
    (record,) = scene.records()
    assert ("inputs" in record, record["input_bytes"], record["outputs"]) == (False, 6, [3])
    assert "dropped_large" not in record


def test_long_bodies_are_noted_and_not_held(tmp_path: Path) -> None:
    """A body above the limit is not kept until its answer comes; the record says what is missing."""
    scene = Scene(tmp_path)
    long = b"[" + b"1," * (LARGEST_BODY_BYTES // 2) + b"1]"
    scene.ask(long, b"[1]")
    scene.ask(b"[2]", long)
    assert scene.collector.queued_bytes == 6
    first, second = scene.records()
    assert (first["dropped_large"], "inputs" in first, first["input_bytes"]) == (["inputs"], False, len(long))
    assert (second["dropped_large"], "outputs" in second, second["inputs"]) == (["outputs"], False, [2])


def test_refusals_for_want_of_room_are_not_collected(tmp_path: Path) -> None:
    """Under overload there is nothing to learn from a request, and least time for it."""
    scene = Scene(tmp_path)
    for status in (200, 422, 500, 503, 504):
        scene.ask(b"[]", b"{}", status)
    assert [record["status"] for record in scene.records()] == [200, 422, 500, 504]


def test_the_id_decides_what_is_sampled(tmp_path: Path) -> None:
    """The same ids are sampled by every server and in every format, about as many as the rate says."""
    one = Scene(tmp_path / "a", sample_rate=0.25)
    other = Scene(tmp_path / "b", sample_rate=0.25, collections=("outputs",))
    more = Scene(tmp_path / "c", sample_rate=0.5)
    ids = [f"request-{number}".encode() for number in range(4000)]
    sampled = [request_id for request_id in ids if one.collector.samples(request_id)]
    assert 900 < len(sampled) < 1100
    assert [request_id for request_id in ids if other.collector.samples(request_id)] == sampled
    assert all(more.collector.samples(request_id) for request_id in sampled)
    for request_id in ids[:100]:
        one.ask(b"[]", request_id=request_id)
    assert [record["request_id"].encode() for record in one.records()] == [
        request_id for request_id in ids[:100] if request_id in sampled
    ]


def test_a_full_queue_drops_and_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither records nor bytes pile up when the writer does not keep up; afterwards there is room again."""
    scene = Scene(tmp_path)
    monkeypatch.setattr(collector_module, "_MAX_QUEUED_RECORDS", 3)
    for _ in range(5):
        scene.ask(b"[]")
    assert len(scene.records()) == 3
    assert scene.counts() == (3, 2, 0)
    monkeypatch.setattr(collector_module, "_MAX_QUEUED_BYTES", 100)
    for _ in range(4):
        scene.ask(b"[" + b" " * 35 + b"]", b"[1]")
    assert len(scene.records()) == 5
    assert scene.counts() == (5, 4, 0)
    scene.ask(b"[" + b" " * 90 + b"]", b"[1]")
    assert len(scene.records()) == 6


def test_records_of_two_hours_go_to_two_folders(tmp_path: Path) -> None:
    """What was queued before the hour and after it is written where it belongs."""
    scene = Scene(tmp_path)
    scene.ask(b"[1]")
    scene.now_s += HOUR_S
    scene.ask(b"[2]")
    scene.collector.write_queued()
    scene.files.close()
    assert [path.rpartition("/")[0] for path in files_in(tmp_path)] == ["7/2026/03/01/12", "7/2026/03/01/13"]


def test_a_disk_that_refuses_costs_records_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What cannot be written is counted and said once a minute; nothing is raised."""
    (tmp_path / "m").write_text("a file where the folder should be")
    scene = Scene(tmp_path / "m")
    for _ in range(3):
        scene.ask(b"[]")
        scene.collector.write_queued()
    assert scene.counts() == (0, 0, 3)
    assert [entry.message.partition(":")[0] for entry in caplog.records] == [
        "collected records of digits cannot be written"
    ]


def test_the_writer_rests_while_others_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It works in slices of half a millisecond and rests four times as long as it has worked."""
    scene = Scene(tmp_path)
    clock, rests = [0.0], []

    def spend() -> float:
        clock[0] += 2**-13
        return clock[0]

    monkeypatch.setattr(collector_module.time, "thread_time", spend)
    monkeypatch.setattr(threading.Event, "wait", lambda _, rest_s: rests.append(rest_s))
    for _ in range(20):
        scene.ask(b"[]")
    assert len(scene.records()) == 20
    # Four records within the slice, and a fifth step of the clock to see that it is over; one more to measure it.
    assert len(rests) == 5
    assert rests[:4] == [4 * 6 * 2**-13] * 4


def test_closing_writes_what_is_queued(tmp_path: Path) -> None:
    """The writer's thread ends with nothing left in the queue, and its file closed."""
    scene = Scene(tmp_path)
    scene.collector.start()
    for number in range(300):
        scene.ask(b"[%d]" % number)
    scene.collector.close(10)
    assert "collect digits" not in {thread.name for thread in threading.enumerate()}
    assert [record["inputs"] for record in last_records(tmp_path, 1000)] == [[n] for n in range(300)]


# --- Parquet ---


def parquet_scene(folder: Path, **settings: Any) -> Scene:
    pytest.importorskip("pyarrow", reason="pyarrow, of the parquet extra, is not installed")
    return Scene(folder, format="parquet", **settings)


def ask_variously(scene: Scene) -> None:
    scene.ask(b'{"data": [[1, 2]]}', b"[3]", content_type=b"application/json")
    scene.ask(b"\xff\xd8", b'{"message": "x"}', 400)
    scene.ask(b"n\xc3\xb6", b"[NaN]")
    scene.ask(b"[1]", b"1" * (LARGEST_BODY_BYTES + 1))


def test_parquet_has_the_same_records(tmp_path: Path) -> None:
    """A Parquet file is read as the records that JSON lines would have been, and only it is left."""
    scene, lines = parquet_scene(tmp_path / "p"), Scene(tmp_path / "j")
    for either in (scene, lines):
        ask_variously(either)
    assert scene.records() == lines.records()
    assert [Path(name).suffix for name in files_in(tmp_path / "p")] == [".parquet"]


def test_parquet_columns_have_types(tmp_path: Path) -> None:
    """Other readers get moments and whole numbers, and bodies as JSON texts."""
    scene = parquet_scene(tmp_path)
    ask_variously(scene)
    scene.records()
    from pyarrow import parquet

    (path,) = tmp_path.rglob("*.parquet")
    table = parquet.read_table(path)
    assert [str(column.type) for column in table.schema][:5] == [
        "timestamp[ms, tz=UTC]", "string", "string", "int64", "int64",
    ]  # fmt: skip
    assert table.column("inputs").to_pylist()[0] == '{"data": [[1, 2]]}'
    assert table.column("time")[0].as_py() == datetime.fromtimestamp(NOON_S, UTC)


def test_a_journal_that_nobody_closed_is_read_too(tmp_path: Path) -> None:
    """What a killed writer left on its way to Parquet has the same records, but for a torn last line."""
    scene, lines = parquet_scene(tmp_path / "p"), Scene(tmp_path / "j")
    for either in (scene, lines):
        ask_variously(either)
        either.collector.write_queued()
    (journal,) = (tmp_path / "p").rglob("*.journal")
    with journal.open("ab") as file:
        file.write(b'{"time": "2026')
    assert last_records(tmp_path / "p", 10) == lines.records()
    scene.files.close()
    assert [Path(name).suffix for name in files_in(tmp_path / "p")] == [".journal"]


def test_a_journal_stays_if_parquet_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk without room for the second form of the records does not cost the first."""
    scene = parquet_scene(tmp_path)
    from pyarrow import parquet

    def refuse(_: Any, path: Path, **__: Any) -> None:
        path.write_bytes(b"PAR1")
        raise OSError("no space left")

    monkeypatch.setattr(parquet, "write_table", refuse)
    scene.ask(b"[1]")
    assert [record["inputs"] for record in scene.records()] == [[1]]
    assert [Path(name).suffix for name in files_in(tmp_path)] == [".journal"]
    assert "collected records stay a journal: no space left" in caplog.text
