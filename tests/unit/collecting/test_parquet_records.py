"""Collected records as Parquet, and the journals that they come from."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.collected_records import last_records
from tests.unit.collecting.collector_scene import NOON_S, Scene, files_in

from stoker.gateway.scoring.collector import LARGEST_BODY_BYTES


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


def test_unclosed_journal_is_read_too(tmp_path: Path) -> None:
    """The journal of a killed writer has the same records, but for a torn last line."""
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
