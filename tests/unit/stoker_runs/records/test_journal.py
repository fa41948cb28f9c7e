"""Append-only files: whole lines are read back, torn ones are passed over."""

from pathlib import Path

import pytest

from stoker_run.json_files import read_json_lines
from stoker_runs.records.folder import append_line


def test_appended_lines_are_read_in_order(tmp_path: Path) -> None:
    """Lines come back as they were written; a missing file has none."""
    path = tmp_path / "events.jsonl"
    assert list(read_json_lines(path)) == []
    lines = [{"t": 1, "k": "loss\n", "v": 0.5}, {"t": 2, "k": "größe", "v": "NaN"}]
    for line in lines:
        append_line(path, line)
    assert list(read_json_lines(path)) == lines


@pytest.mark.parametrize("torn", [b'{"k": "lo', b'{"k": "lo\xff', b'{"k": 1}'])
def test_a_torn_last_line_is_not_read_and_harms_no_later_one(tmp_path: Path, torn: bytes) -> None:
    """The torn line of a killed process stays alone: the next line is whole."""
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"k": 0}\n' + torn)
    assert list(read_json_lines(path)) == [{"k": 0}]
    append_line(path, {"k": 2})
    assert [line["k"] for line in read_json_lines(path)] in ([0, 2], [0, 1, 2])


def test_line_that_is_no_object_is_skipped(tmp_path: Path) -> None:
    """Damaged lines are skipped, and the others are read."""
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"k": 0}\n\n[1]\nnull\n' + b"[" * 100_000 + b'\n{"k": 1}\n')
    assert list(read_json_lines(path)) == [{"k": 0}, {"k": 1}]
