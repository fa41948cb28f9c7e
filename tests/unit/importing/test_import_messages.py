"""Messages of `stoker models import`: they name the user's files and the options of the command."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.tiny_models import write_doubler

from stoker.errors import LoadFailed, RepositoryError
from stoker.importing import imports
from stoker.importing.imports import ImportOrder, import_model
from stoker.models.repository import Repository
from stoker.models.way_measuring import Bench
from stoker.models.ways import Way, WayResult

NOW = datetime(2026, 11, 29, tzinfo=UTC)


@pytest.fixture
def order(tmp_path: Path) -> ImportOrder:
    """An import of an ONNX file whose name has a space, with a sample."""
    path = write_doubler(tmp_path / "the model.onnx")
    sample = tmp_path / "request.npy"
    sample.write_bytes(b"anything")
    return ImportOrder("m", path, sample, ("onnx", "tensorrt"), "cpu", 0.01, 64, 60)


def failure_of(order: ImportOrder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> str:
    """The message of an import where loading the original fails; `{model}` and `{sample}` are the copies' paths."""

    def fail(at: Bench, way: Way) -> dict[str, Any]:
        raise LoadFailed(text.format(model=at.folder / way.entry, sample=at.folder / "sample_input.npy"))

    monkeypatch.setattr(imports, "record_reference", fail)
    with pytest.raises(LoadFailed) as failure:
        import_model(order, Repository(tmp_path / "models"), NOW, lambda *_: None)
    return str(failure.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{model} is damaged", "{path} is damaged"),
        ("cannot load {model}: {model} failed: no", "cannot load {path}: {path} failed: no"),
        ("the sample input {sample} does not fit", "the sample input {given} does not fit"),
        (
            "{model} was exported for at most 16 rows: set max_batch_rows: 16, or export it anew",
            "{path} was exported for at most 16 rows: give --max-batch-rows 16, or export it anew",
        ),
        ("if it only needs longer, raise load_timeout_s", "if it only needs longer, raise --load-timeout-s"),
        (
            "give it a sample input (sample_input.npz or .json beside it, or --sample-input), or save it",
            "give it a sample input by --sample FILE, or save it",
        ),
        ("compile it for cuda, or set device", "compile it for cuda, or give --device"),
    ],
)
def test_failure_of_the_original_names_files_and_options_of_the_user(
    order: ImportOrder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: str
) -> None:
    """No path of the import itself, and no setting of a server."""
    message = failure_of(order, tmp_path, monkeypatch, text)
    assert message == expected.format(path=order.path, given=order.sample)


def test_problem_of_a_way_names_the_file_of_the_user(
    order: ImportOrder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does so in the table and in the registered version."""
    monkeypatch.setattr(imports, "record_reference", lambda *_: {"signature": {}})

    def measure(name: str, way: Way, bench: Bench) -> WayResult:
        return WayResult(name, problem=f"{bench.folder / way.entry} needs longer: raise load_timeout_s")

    monkeypatch.setattr(imports, "measure_way", measure)
    found: list[WayResult] = []

    def choose(results: list[WayResult], original: str, **_: object) -> str:
        found.extend(results)
        return original

    monkeypatch.setattr(imports, "choose_default", choose)
    import_model(order, Repository(tmp_path / "models"), NOW, lambda *_: None)
    assert found[0].problem == f"{order.path} needs longer: raise --load-timeout-s"


def test_sample_that_is_no_file_is_refused_by_its_option(order: ImportOrder, tmp_path: Path) -> None:
    """Before anything is copied."""
    assert order.sample is not None
    order.sample.unlink()
    with pytest.raises(RepositoryError, match=r"--sample: .*request\.npy is no file"):
        import_model(order, Repository(tmp_path / "models"), NOW, lambda *_: None)
