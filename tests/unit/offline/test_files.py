"""Files through a model: formats, shards, and work that is done only once."""

from __future__ import annotations

import json
import math
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pytest
from tests.patience import PATIENCE_S
from tests.tiny_models import PICKY_LIMIT, write_doubler, write_marked, write_picky

from stoker import cli
from stoker.errors import BatchFailed, InvalidInput, InvalidSettings, LoadTimeout, OperatorError
from stoker.offline import Predictor
from stoker.offline.answer_files import result_file
from stoker.offline.files import ShardResult, score_files
from stoker.offline.shards import Shard, find_files, pieces_of
from stoker.offline.table_files import FORMATS, count_rows, read_tables

ROWS = np.random.default_rng(2).standard_normal((10, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def predictor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Predictor]:
    """Y = 2 x for rows of 4, in batches of 4."""
    folder = tmp_path_factory.mktemp("model")
    with Predictor(
        write_doubler(folder / "doubler.onnx"), "cpu", workspace=folder / "workspace", max_batch_rows=4
    ) as loaded:
        yield loaded


def score(
    predictor: Predictor, *inputs: Path, output: Path, shard: str = "0/1", kind: str | None = None
) -> ShardResult:
    """Score files without options and progress."""
    return score_files(predictor, inputs, output, Shard.read(shard), kind, {}, lambda _: None)


def write_rows(folder: Path, rows: np.ndarray, kind: str) -> Path:
    """A file of each format with the same rows."""
    file = folder / f"rows.{kind}"
    match kind:
        case "npy":
            np.save(file, rows)
        case "npz":
            np.savez(file, x=rows)
        case "csv":
            pd.DataFrame(rows).to_csv(file, index=False, header=["a", "b", "c", "d"])
        case "parquet":
            pd.DataFrame({"x": list(rows)}).to_parquet(file)
        case _:
            file.write_text("".join(f"{json.dumps(row)}\n" for row in rows.tolist()) + "\n")
    return file


def read_answers(file: Path) -> np.ndarray:
    """The only output of a file of answers."""
    (table,) = read_tables(file, 0, None, 1000)
    if isinstance(table, dict):
        return np.stack(list(table.values()), axis=1).astype(np.float32).reshape(-1, 4)
    return np.asarray(table, np.float32)


@pytest.mark.parametrize("kind", FORMATS)
def test_each_format_goes_in_and_out(predictor: Predictor, tmp_path: Path, kind: str) -> None:
    """The answers are those of the rows, to the last bit, in a file of the same name; all formats are counted."""
    file = write_rows(tmp_path, ROWS, kind)
    assert count_rows(file) == len(ROWS)
    done = score(predictor, file, output=tmp_path / "out")
    assert (done.files, done.rows, done.before) == (1, 10, 0)
    assert read_answers(tmp_path / "out" / file.name).tobytes() == (2 * ROWS).tobytes()


@pytest.mark.parametrize("kind", FORMATS)
def test_shards_together_have_each_row_once(predictor: Predictor, tmp_path: Path, kind: str) -> None:
    """A file is cut between batches, and the parts one after the other are the answers; some may be empty."""
    file = write_rows(tmp_path, ROWS, kind)
    parts = []
    for number in range(4):
        done = score(predictor, file, output=tmp_path / "out", shard=f"{number}/4")
        if done.files:
            parts.append(read_answers(tmp_path / "out" / f"rows-{number:05}-of-00004.{kind}"))
    assert [len(part) for part in parts] == [4, 4, 2]
    assert np.concatenate(parts).tobytes() == (2 * ROWS).tobytes()
    assert score(predictor, file, output=tmp_path / "out", shard="0/4").before == 1


def test_shards_take_whole_files_where_there_are_enough(tmp_path: Path) -> None:
    """Each file is one shard's; of a folder hidden files, records and other endings are left out."""
    for name in ("a/1.npy", "a/2.npy", "b.npy", ".hidden.npy", "_done/x.npy", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    files = find_files([tmp_path], FORMATS)
    assert list(files) == ["a/1", "a/2", "b"]

    def never(_: Path) -> int:
        raise AssertionError("whole files are not counted")

    names = [[piece.name for piece in pieces_of(files, Shard(number, 2), 4, never)] for number in (0, 1)]
    assert names == [["a/1", "b"], ["a/2"]]


def test_finished_files_are_not_scored_again(predictor: Predictor, tmp_path: Path) -> None:
    """Files are skipped only while model, rows and options are the same; otherwise they are refused."""
    file, out = write_rows(tmp_path, ROWS, "npy"), tmp_path / "out"
    score(predictor, file, output=out)
    written = (out / "rows.npy").stat().st_ino
    assert score(predictor, file, output=out) == ShardResult(before=1)
    assert (out / "rows.npy").stat().st_ino == written
    (out / "rows.npy").unlink()
    assert score(predictor, file, output=out).files == 1
    np.save(file, ROWS[:3])
    with pytest.raises(InvalidSettings, match=r"with another source: .* name another --output"):
        score(predictor, file, output=out)
    (out / "_done" / "rows.json").write_text("[]")
    with pytest.raises(InvalidSettings, match="no record of answers"):
        score(predictor, file, output=out)


def test_failed_file_leaves_no_output_and_is_named(tmp_path: Path) -> None:
    """A failed file leaves no output, finished ones stay, and the error names the row and its file."""
    rows = np.zeros((9000, 4), np.float32)
    np.save(tmp_path / "a.npy", rows)
    rows[8500, 0] = PICKY_LIMIT
    np.save(tmp_path / "b.npy", rows)
    with Predictor(write_picky(tmp_path / "picky.onnx"), "cpu", workspace=tmp_path / "workspace") as picky:
        with pytest.raises((BatchFailed, InvalidInput), match=r"b\.npy, rows from 8192: row 308"):
            score(picky, tmp_path / "a.npy", tmp_path / "b.npy", output=tmp_path / "out")
        assert sorted(path.name for path in (tmp_path / "out").rglob("*.*")) == ["a.json", "a.npy"]
        np.save(tmp_path / "b.npy", rows[:8500])
        done = score(picky, tmp_path / "a.npy", tmp_path / "b.npy", output=tmp_path / "out")
        assert done == ShardResult(files=1, rows=8500, before=1)
    assert len(np.load(tmp_path / "out" / "b.npy")) == 8500


def test_several_outputs_make_an_archive_and_other_formats(tmp_path: Path) -> None:
    """Npz in place of npy; columns of csv for each number, lists in parquet, objects in jsonl."""
    np.save(tmp_path / "rows.npy", ROWS)
    with Predictor(write_marked(tmp_path / "m.onnx", 3), "cpu", workspace=tmp_path / "workspace") as marked:
        score(marked, tmp_path / "rows.npy", output=tmp_path / "out")
        with np.load(tmp_path / "out" / "rows.npz") as answers:
            assert answers["y"].tobytes() == (2 * ROWS).tobytes()
        with pytest.raises(
            InvalidSettings, match="npy holds one column, and the answers have 'y', 'v'; give --format npz"
        ):
            score(marked, tmp_path / "rows.npy", output=tmp_path / "one", kind="npy")
        for kind in ("csv", "parquet", "jsonl"):
            score(marked, tmp_path / "rows.npy", output=tmp_path / kind, kind=kind)
    frame = pd.read_csv(tmp_path / "csv" / "rows.csv")
    assert list(frame.columns) == ["y_0", "y_1", "y_2", "y_3", "v_0"]
    assert frame["y_1"].to_numpy(np.float32).tobytes() == (2 * ROWS[:, 1]).tobytes()
    assert pd.read_parquet(tmp_path / "parquet" / "rows.parquet")["v"].map(list).tolist() == [[3.0]] * 10
    first = json.loads((tmp_path / "jsonl" / "rows.jsonl").read_text().splitlines()[0])
    assert (first["v"], np.float32(first["y"]).tobytes()) == ([3.0], (2 * ROWS[0]).tobytes())


def test_file_of_answers_appears_when_complete(tmp_path: Path) -> None:
    """Nothing is seen before the end, and nothing after an interruption."""
    with result_file(tmp_path / "a.jsonl", "jsonl") as add:
        add({"y": np.ones(2)})
        assert not (tmp_path / "a.jsonl").exists()
    assert (tmp_path / "a.jsonl").read_text() == "1.0\n1.0\n"

    def interrupted() -> None:
        with result_file(tmp_path / "b.npy", "npy") as add:
            add({"y": np.ones(2)})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.txt", "1", "none of the files that can be read"),
        ("rows.npy", "1", "cannot be read: "),
        ("rows.jsonl", "[1\n", "cannot be read: unexpected"),
        ("rows.jsonl", '{"a": 1}\n{"b": 1}\n', "do not all have the same names"),
        ("rows.parquet", "1", "cannot be read: "),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, content: str, message: str) -> None:
    """One sentence with the file's name."""
    (tmp_path / name).write_text(content)
    with pytest.raises(InvalidSettings, match=message):
        list(read_tables(tmp_path / name, 0, None, 8))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(7,), (7, 3), (7, 2, 2), (7, 0)])
def test_arrays_are_read_in_parts(tmp_path: Path, shape: tuple[int, ...], order: Literal["C", "F"]) -> None:
    """Arrays in any order of the file give the rows from one to another, so many at a time."""
    array = np.asarray(np.arange(math.prod(shape)).reshape(shape), np.float32, order)
    np.save(tmp_path / "a.npy", array)
    assert count_rows(tmp_path / "a.npy") == 7
    parts = list(read_tables(tmp_path / "a.npy", 1, 6, 2))
    assert [len(part) for part in parts] == [2, 2, 1]
    assert np.array_equal(np.concatenate(parts), array[1:6])


def test_shortened_array_is_reported(tmp_path: Path) -> None:
    """Somebody may write the file anew while it is read: that is an error, and not the end of the process."""
    np.save(tmp_path / "a.npy", np.zeros((100_000, 8)))
    rows = read_tables(tmp_path / "a.npy", 0, None, 50_000)
    assert len(next(rows)) == 50_000
    os.truncate(tmp_path / "a.npy", 1000)
    with pytest.raises(InvalidSettings, match="it ends before row 100000"):
        next(rows)


@pytest.mark.parametrize("text", ["4/4", "1", "-1/2", "0/0", "a/b"])
def test_shards_that_are_none(text: str) -> None:
    """I is from 0 to N - 1."""
    with pytest.raises(InvalidSettings, match="--shard has to be I/N"):
        Shard.read(text)


@pytest.mark.parametrize(
    ("model", "options", "problem"),
    [
        ("gone.onnx", {}, "there is no file gone.onnx, and no model 'gone.onnx' is registered"),
        ("gone", {}, "^no model 'gone' is registered"),
        ("gone", {"threads": 0}, "threads has to be a whole number from 1 up, not 0"),
        ("gone", {"threads": "x"}, "threads has to be a whole number from 1 up, not 'x'"),
    ],
)
def test_predictor_reports_wrong_inputs(
    tmp_path: Path, model: str, options: dict[str, Any], problem: str
) -> None:
    """Of a name with the ending of a model's file, that there is no such file."""
    with pytest.raises(OperatorError, match=problem):
        Predictor(model, "cpu", workspace=tmp_path, **options)


def test_one_column_that_stays_may_be_named_by_a_text(tmp_path: Path) -> None:
    """It is that column, and not one for each of its letters."""
    model = write_doubler(tmp_path / "doubler.onnx")
    with Predictor(model, "cpu", workspace=tmp_path / "w", keep="id") as predictor:
        answer = predictor(pd.DataFrame({"id": ["a"], "x": [ROWS[0]]}))
    assert list(answer["id"]) == ["a"]


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It scores, prints its counts, and does so once; kept columns go into the answers."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    model = write_doubler(tmp_path / "doubler.onnx")
    pd.DataFrame({"id": ["a", "b"], **dict(zip("wxyz", ROWS[:2].T, strict=True))}).to_csv(
        tmp_path / "rows.csv", index=False
    )
    arguments: list[Any] = ["offline", model, "--input", tmp_path / "rows.csv", "--output", tmp_path / "out"]
    command = [*map(str, arguments), "--keep", "id", "--device", "cpu", "--workspace", str(tmp_path / "w")]
    assert cli.main(command) == 0
    assert capsys.readouterr().out == f"1 file with 2 rows in {tmp_path / 'out'}\n"
    assert cli.main(command) == 0
    assert "0 files with 0 rows" in (printed := capsys.readouterr().out)
    assert "1 done before" in printed
    assert pd.read_csv(tmp_path / "out" / "rows.csv")["id"].tolist() == ["a", "b"]
    assert cli.main([*command[:-2], "--shard", "2/2"]) == 2


def test_numbered_first_line_gets_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Pandas names columns 0, 1, 2, …: that line is a row here, and who scores it hears so, once."""
    file = tmp_path / "rows.csv"
    pd.DataFrame(ROWS).to_csv(file, index=False)
    assert count_rows(file) == len(ROWS) + 1
    assert caplog.messages == []
    assert sum(len(table["0"]) for table in read_tables(file, 4, None, 4)) == len(ROWS) + 1 - 4
    assert caplog.messages == []
    (first, *_) = read_tables(file, 0, None, 4)
    assert [column[0] for column in first.values()] == [0, 1, 2, 3]
    (message,) = caplog.messages
    assert message.startswith(
        f"{file}: the first line, 0,1,2,3, is scored as a row; if it has the names of the"
    )
    for line in ("0,1,3", "0.0,1.0", "1,2,3", "a,b"):
        file.write_text(f"{line}\n{line.replace('a', '0').replace('b', '1')}\n")
        assert list(read_tables(file, 0, None, 4))
    assert len(caplog.messages) == 1


def test_a_model_that_loads_for_ever_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends after `load_timeout_s`, as in a server; neither callers nor the end of the process wait for it."""
    released, hanging = threading.Event(), list[threading.Thread]()

    def hang(*_: object) -> None:
        hanging.append(threading.current_thread())
        released.wait(PATIENCE_S)

    monkeypatch.setattr("stoker.offline.predictor.load_model", hang)
    with pytest.raises(LoadTimeout, match="doubler was not loaded and warmed up within 1 s"):
        Predictor(
            write_doubler(tmp_path / "doubler.onnx"),
            "cpu",
            workspace=tmp_path / "workspace",
            load_timeout_s=1,
        )
    (thread,) = hanging
    assert thread.daemon
    released.set()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
