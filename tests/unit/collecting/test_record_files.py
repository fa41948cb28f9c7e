"""Files of collected records: folders by hour, their bound, reading them back."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from tests.collected_records import last_records
from tests.unit.collecting.collector_scene import HOUR_S, NOON_S, files_in

from stoker.collecting import record_files
from stoker.collecting.record_files import RecordFiles

ROOMY = 1 << 30


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


def test_lines_are_written_before_the_file_is_closed(tmp_path: Path) -> None:
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
    """A killed writer's unfinished line does not hide the records before it, nor those of its successor."""
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

    def refuse(descriptor: int, content: bytes) -> None:
        os.write(descriptor, content[:3])
        raise OSError("no space left")

    with monkeypatch.context() as full:
        full.setattr(record_files, "write_all", refuse)
        with pytest.raises(OSError, match="no space left"):
            files.write(NOON_S, [line({"time": "2"})])
    files.write(NOON_S, [line({"time": "3"})])
    files.close()
    assert [record["time"] for record in last_records(tmp_path, 10)] == ["1", "3"]
