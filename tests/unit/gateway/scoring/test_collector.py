"""The collector: records of requests and answers, sampling, drops, its writer's share of the processor."""

import base64
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.collected_records import last_records
from tests.own_time import give_own_time
from tests.unit.collecting.collector_scene import HOUR_S, Scene, files_in

from stoker.gateway.scoring import background_writer
from stoker.gateway.scoring import collector as collector_module
from stoker.gateway.scoring.collector import LARGEST_BODY_BYTES


def test_record_has_the_request_and_its_answer(tmp_path: Path) -> None:
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


def test_only_chosen_bodies_are_kept(tmp_path: Path) -> None:
    """With one collection the other body is not in the record, only its length."""
    scene = Scene(tmp_path, collections=("outputs",))
    scene.ask(b"[1, 2]", b"[3]")
    (record,) = scene.records()
    assert ("inputs" in record, record["input_bytes"], record["outputs"]) == (False, 6, [3])
    assert "dropped_large" not in record


def test_long_bodies_are_noted_and_not_held(tmp_path: Path) -> None:
    """A body above the limit is not kept until its answer comes; the record names the missing part."""
    scene = Scene(tmp_path)
    long = b"[" + b"1," * (LARGEST_BODY_BYTES // 2) + b"1]"
    scene.ask(long, b"[1]")
    scene.ask(b"[2]", long)
    assert scene.collector.queued_bytes == 6
    first, second = scene.records()
    assert (first["dropped_large"], "inputs" in first, first["input_bytes"]) == (["inputs"], False, len(long))
    assert (second["dropped_large"], "outputs" in second, second["inputs"]) == (["outputs"], False, [2])


def test_refusals_for_overload_are_not_collected(tmp_path: Path) -> None:
    """Under overload there is nothing to learn from a request, and least time for it."""
    scene = Scene(tmp_path)
    for status in (200, 422, 500, 503, 504):
        scene.ask(b"[]", b"{}", status)
    assert [record["status"] for record in scene.records()] == [200, 422, 500, 504]


def test_sampling_is_decided_by_the_request_id(tmp_path: Path) -> None:
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
    """Records queued before and after the hour are written to the folder of their own hour."""
    scene = Scene(tmp_path)
    scene.ask(b"[1]")
    scene.now_s += HOUR_S
    scene.ask(b"[2]")
    scene.collector.write_queued()
    scene.files.close()
    assert [path.rpartition("/")[0] for path in files_in(tmp_path)] == ["7/2026/03/01/12", "7/2026/03/01/13"]


def test_a_disk_that_refuses_costs_records_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Lost records are counted and logged once a minute; nothing is raised."""
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

    give_own_time(monkeypatch, background_writer, thread_time=spend)
    monkeypatch.setattr(scene.collector._closing, "wait", rests.append)
    for _ in range(20):
        scene.ask(b"[]")
    assert len(scene.records()) == 20
    # Four records within the slice, and a fifth step of the clock to see that it is over; one more to measure it.
    assert len(rests) == 5
    assert rests[:4] == [4 * 6 * 2**-13] * 4


def test_close_writes_the_queue(tmp_path: Path) -> None:
    """The writer's thread ends with nothing left in the queue, and its file closed."""
    scene = Scene(tmp_path)
    scene.collector.start()
    for number in range(300):
        scene.ask(b"[%d]" % number)
    scene.collector.close(10)
    assert "collect digits" not in {thread.name for thread in threading.enumerate()}
    assert [record["inputs"] for record in last_records(tmp_path, 1000)] == [[n] for n in range(300)]
