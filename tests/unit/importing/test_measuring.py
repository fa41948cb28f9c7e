"""Measurements of an original model and of its conversions."""

import json
import sys
import zipfile
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.live_server import run_stoker

from stoker.errors import LoadFailed, RepositoryError
from stoker.importing import conversions, imports, measuring
from stoker.importing.imports import ImportOrder, import_model, model_file
from stoker.importing.reference import read_cases
from stoker.models.repository import Repository
from stoker.models.way_measuring import REFERENCE, Bench
from stoker.models.ways import Way

onnx = pytest.importorskip("onnx", reason="onnx, of the training extra, is not installed")


def write_model(
    path: Path, *nodes: tuple[str, list[str], list[str]], kind: str = "FLOAT", **constants: Any
) -> Path:
    """A model from `x`, rows of three numbers, to `y`."""
    helper = onnx.helper
    made = [helper.make_node(*node[:3], **(node[3] if len(node) > 3 else {})) for node in nodes]
    graph = helper.make_graph(
        made,
        "made",
        [helper.make_tensor_value_info("x", getattr(onnx.TensorProto, kind), ["n", 3])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 3])],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    return path


NOW = datetime(2026, 11, 27, tzinfo=UTC)
W = np.array([[1, 2, 3], [0, 1, 0], [2, 0, 1]], np.float32)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A folder with the reference of `y = x W`."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    write_model(tmp_path / "onnx/right.onnx", ("MatMul", ["x", "w"], ["y"]), w=W)
    bench = Bench("net", tmp_path, "cpu", 1e-3, 16, 60.0)
    recorded = measuring.do(bench.order(Way("onnx", "onnx/right.onnx"), record=True))
    assert recorded["signature"]["isolation"]["batched"]
    return bench


def measured(bench: Bench, entry: str) -> dict[str, Any]:
    return measuring.do(bench.order(Way("onnx", entry)))


def test_the_reference_has_random_rows_a_batch_and_extremes(bench: Bench) -> None:
    """Only answers that are finite have to agree; infinities and NaN may differ."""
    cases = read_cases(bench.folder / REFERENCE)
    strict = {case.kind: case.strict for case in cases}
    assert {"random", "batch", "zero", "large", "negative", "nan", "infinite"} <= strict.keys()
    assert strict["batch"]
    assert not strict["nan"]
    batch = next(case for case in cases if case.kind == "batch")
    np.testing.assert_allclose(batch.answer["y"], batch.feeds["x"] @ W, rtol=1e-6)


def test_the_original_agrees_with_itself(bench: Bench) -> None:
    """Its difference is nothing, its rows are apart, and its batches are timed."""
    found = measured(bench, "onnx/right.onnx")
    assert (found["differs"], found["difference"], found["flips"]) == ("", 0.0, 0)
    assert found["batched"]
    assert found["compared"] >= 7
    assert found["one_row_ms"] > 0
    assert found["best_ms"] > 0


def test_a_conversion_that_is_wrong_is_found_out(bench: Bench) -> None:
    """By answers that differ, by a class that flips, or by numbers that are not finite."""
    wrong = write_model(bench.folder / "onnx/wrong.onnx", ("MatMul", ["x", "w"], ["y"]), w=W.T.copy())
    found = measured(bench, str(wrong.relative_to(bench.folder)))
    assert "its answers differ by up to" in found["differs"]
    assert found["flips"] > 0
    nan = np.full((3, 3), np.nan, np.float32)
    write_model(wrong, ("MatMul", ["x", "w"], ["y"]), w=nan)
    assert "NaN or infinities" in measured(bench, "onnx/wrong.onnx")["differs"]


def test_conversion_that_refuses_a_batch_differs(bench: Bench) -> None:
    """It takes single rows alone, unlike the original."""
    shape = np.array([1, 3], np.int64)
    write_model(
        bench.folder / "onnx/one.onnx",
        ("Reshape", ["x", "one"], ["single"]),
        ("MatMul", ["single", "w"], ["y"]),
        w=W,
        one=shape,
    )
    found = measured(bench, "onnx/one.onnx")
    assert "it fails on inputs of the kind 'batch'" in found["differs"]


def test_conversion_that_mixes_rows_is_not_batched(bench: Bench) -> None:
    """Its answers depend on the other rows of a batch, although single rows are right."""
    write_model(
        bench.folder / "onnx/mixing.onnx",
        ("MatMul", ["x", "w"], ["straight"]),
        ("ReduceMean", ["x"], ["mean"], {"axes": [0]}),
        ("Sub", ["x", "mean"], ["apart"]),
        ("Mul", ["apart", "little"], ["less"]),
        ("Add", ["straight", "less"], ["y"]),
        w=W,
        little=np.array(1e-6, np.float32),
    )
    found = measured(bench, "onnx/mixing.onnx")
    assert not found["batched"]
    assert "mix" in found["isolation"] or "row" in found["isolation"]


def test_integers_are_drawn_from_all_that_the_model_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table of 50 entries is looked up at most of them, not only at the first two."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    table = np.random.default_rng(1).random(50).astype(np.float32)
    write_model(tmp_path / "onnx/table.onnx", ("Gather", ["table", "x"], ["y"]), kind="INT64", table=table)
    measuring.do(
        Bench("net", tmp_path, "cpu", 1e-3, 16, 60.0).order(Way("onnx", "onnx/table.onnx"), record=True)
    )
    cases = read_cases(tmp_path / REFERENCE)
    drawn = np.concatenate([case.feeds["x"].ravel() for case in cases if case.kind == "random"])
    assert 10 < drawn.max() < 50


def test_import_registers_its_measurements(tmp_path: Path) -> None:
    """`stoker models import` prints the table as JSON; the version has its reference, and `show` its ways."""
    path = write_model(tmp_path / "double.onnx", ("Add", ["x", "x"], ["y"]))
    place = ("--workspace", tmp_path / "workspace")
    done = run_stoker("models", "import", path, "--device", "cpu", "--max-batch-rows", "8", "--json", *place)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["model"], report["default"], list(report["ways"])) == ("double:1", "onnx", ["onnx"])
    by_way = {one["way"]: one for one in report["results"]}
    assert by_way["onnx"]["objection"] == ""
    assert by_way["tensorrt"]["objection"] == "TensorRT needs a GPU"
    shown = run_stoker("models", "show", "double", *place)
    assert "onnx is the fastest on cpu" in shown.stdout
    assert REFERENCE in shown.stdout


def order(path: Path, **fields: Any) -> ImportOrder:
    values: dict[str, Any] = {"name": "net", "path": path, "sample": None, "tried": None, "device": "cpu"}
    return ImportOrder(**{**values, "tolerance": 1e-3, "max_batch_rows": 8, "limit_s": 60.0, **fields})


def silent(_step: str, _done: int, _of: int) -> None:
    """Ignore the progress."""


def test_import_of_an_unsupported_file_is_refused(tmp_path: Path) -> None:
    """An unsupported or missing file registers nothing and leaves nothing behind."""
    repository = Repository(tmp_path / "models")
    pickled = tmp_path / "model.pkl"
    pickled.write_bytes(b"\x80\x04.")
    with pytest.raises(RepositoryError, match="imported are those of PyTorch, ONNX and TensorFlow"):
        import_model(order(pickled), repository, NOW, silent)
    with pytest.raises(RepositoryError, match="does not exist"):
        import_model(order(tmp_path / "gone.pt2"), repository, NOW, silent)
    assert repository.names() == []
    assert [entry.name for entry in (tmp_path / "models" / ".staging").iterdir()] == [".lock"]


def test_the_model_of_an_archive_of_torchserve_is_imported(tmp_path: Path) -> None:
    """The file that its manifest names; one that needs a class of the archive is refused."""
    archive = tmp_path / "net.mar"
    for code, expected in (("", None), ("model.py", "code that makes the model")):
        model = {
            "modelName": "net",
            "modelVersion": "1.0",
            "handler": "base_handler",
            "serializedFile": "net.onnx",
        }
        manifest = {"runtime": "python", "model": {**model, **({"modelFile": code} if code else {})}}
        with zipfile.ZipFile(archive, "w") as packed:
            packed.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest))
            packed.writestr("net.onnx", b"the model")
            packed.writestr("model.py", "")
        with ExitStack() as leases:
            if expected is None:
                file = model_file(order(archive), tmp_path / "staging", leases)
                assert file.read_bytes() == b"the model"
                continue
            with pytest.raises(RepositoryError, match=expected):
                model_file(order(archive), tmp_path / "staging", leases)


def test_failed_conversions_are_rows_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version has the other ways."""

    def convert(_module: str, order: dict[str, Any], *_: object) -> dict[str, Any]:
        raise LoadFailed(f"net was not converted to {order['to']}: its process ended with status -11")

    def in_process(_module: str, order: dict[str, Any], *_: object) -> dict[str, Any]:
        return json.loads(json.dumps(measuring.do(order)))

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.setattr(imports, "order_child", convert)
    monkeypatch.setattr("stoker.models.way_measuring.order_child", in_process)
    path = write_model(tmp_path / "double.onnx", ("Add", ["x", "x"], ["y"]))
    registered = import_model(order(path, tried=("aoti",)), Repository(tmp_path / "models"), NOW, silent)
    assert registered.ways is not None
    assert {one.way: one.problem for one in registered.ways.results} == {
        "onnx": "",
        "aoti": "nothing makes aoti of a model of onnx",
    }


def test_a_compiled_package_is_not_imported(tmp_path: Path) -> None:
    """Running it for the comparison would run code that nobody has allowed."""
    path = tmp_path / "net.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("net/data/aotinductor/model/net.so", b"")
    with pytest.raises(
        RepositoryError, match=r"is an AOTInductor package, .* serve it with allow_pickle: true"
    ):
        import_model(order(path), Repository(tmp_path / "models"), NOW, silent)


def test_keras_with_an_unsafe_safe_mode_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused before the file is read."""
    monkeypatch.setattr(conversions, "_tensorflow", lambda: None)
    monkeypatch.setitem(sys.modules, "keras", SimpleNamespace(__version__="3.11.2"))
    with pytest.raises(LoadFailed, match=r"even in its safe mode .*: install 3.12 or newer"):
        conversions.do({"source": tmp_path / "net.h5", "target": tmp_path / "saved", "to": "tensorflow"})
