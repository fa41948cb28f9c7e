"""Collected data of several processes in one folder: each makes room in it at any moment."""

import contextlib
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.interleaving import interrupted
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


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("later_s", [0, HOUR_S, 24 * HOUR_S])
@pytest.mark.parametrize("write", [write_record, write_model_data])
def test_room_that_another_process_makes_costs_no_line(
    tmp_path: Path, write: Callable[[Path, float, bytes], None], later_s: int
) -> None:
    """Before each call of the system once: it removes the file of before, and all folders that are empty then."""
    for moment in itertools.count():
        folder = tmp_path / str(moment)
        write(folder, NOON_S, b"old\n")
        (old,) = files_in(folder)

        def make_room(folder: Path = folder, old: Path = old) -> None:
            old.unlink()
            for place in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
                with contextlib.suppress(OSError):
                    place.rmdir()

        with interrupted(moment, make_room) as calls:
            write(folder, NOON_S + later_s, b"new\n")
        assert [path.read_bytes().endswith(b"new\n") for path in files_in(folder) if path != old] == [True]
        if len(calls) <= moment:
            break
    assert moment > 5
