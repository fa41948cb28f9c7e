"""Collected data of several processes in one folder: each makes room in it at any moment."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.interleaving import moments
from tests.observing import look_at_files
from tests.unit.collecting.collector_scene import HOUR_S, NOON_S

from stoker.collecting.model_data import ModelDataFiles, Series
from stoker.collecting.record_files import RecordFiles

ROOMY = 1 << 30
SERIES = Series("m", "1", "inputs", "inputs", b"a\n")


def write_record(folder: Path, time_s: float, line: bytes) -> None:
    files = RecordFiles(folder, 1, "jsonl", max_bytes=ROOMY, writers=2)
    files.write(time_s, [line])
    files.close()


def write_model_data(folder: Path, time_s: float, line: bytes) -> None:
    files = ModelDataFiles(folder, ROOMY)
    files.write(SERIES, time_s, line)
    files.close()


@pytest.mark.parametrize("later_s", [0, HOUR_S, 24 * HOUR_S])
@pytest.mark.parametrize("write", [write_record, write_model_data])
def test_room_that_another_process_makes_costs_no_line(
    tmp_path: Path, write: Callable[[Path, float, bytes], None], later_s: int
) -> None:
    """Before each call of the system once: it removes the file of before, and all folders that are empty then."""
    for moment, interrupted in enumerate(moments()):
        folder = tmp_path / str(moment)
        write(folder, NOON_S, b"old\n")
        (old,) = look_at_files(folder, Path.stat)

        def make_room(folder: Path = folder, old: Path = old) -> None:
            old.unlink()
            for place in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
                with contextlib.suppress(OSError):
                    place.rmdir()

        with interrupted(make_room):
            write(folder, NOON_S + later_s, b"new\n")
        contents = look_at_files(folder, Path.read_bytes)
        assert [content.endswith(b"new\n") for path, content in contents.items() if path != old] == [True]
    assert moment > 5
