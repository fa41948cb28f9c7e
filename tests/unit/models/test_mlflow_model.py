"""Models in MLflow's format: their folders, the bodies of requests, and the answers."""

import datetime as dt
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.mlflow_folders import PRICES, write_mlmodel, write_onnx, write_sklearn

from stoker.environments.files import read_environment
from stoker.environments.location import find_environment
from stoker.errors import EnvironmentUnusable, LoadFailed, RepositoryError, RequestError
from stoker.models.frameworks import Detected, detect
from stoker.models.mlflow_serving import ENTRY_SCRIPT, folder_around, sample_request, write_sample
from stoker.scripts.entry_script import EntryScript
from stoker.scripts.invocation import ScriptCalls
from stoker.scripts.mlflow_folder import Column, MlflowFolder
from stoker.scripts.mlflow_model import MlflowModel
from stoker.wire.script_requests import ScriptRequest

PYFUNC = {"python_function": {"loader_module": "mlflow.pyfunc.model"}}


@pytest.fixture(scope="module")
def sklearn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a regression."""
    return write_sklearn(tmp_path_factory.mktemp("models") / "prices")


@pytest.fixture
def model(sklearn: Path, monkeypatch: pytest.MonkeyPatch) -> MlflowModel:
    """The regression, loaded without mlflow."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "mlflow" else object())
    return MlflowModel(sklearn)


def echoing(monkeypatch: pytest.MonkeyPatch, folder: Path, predict: Any) -> MlflowModel:
    """A model that is loaded by a puppet of mlflow."""
    pyfunc = types.ModuleType("mlflow.pyfunc")
    pyfunc.load_model = lambda path: types.SimpleNamespace(predict=predict)  # type: ignore[attr-defined]
    mlflow = types.ModuleType("mlflow")
    mlflow.pyfunc = pyfunc  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "mlflow.pyfunc", pyfunc)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    return MlflowModel(folder)


def ask(model: MlflowModel, body: Any) -> Any:
    return model.answer(body if isinstance(body, str) else json.dumps(body))


def test_onnx_is_served_by_its_runtime(tmp_path: Path) -> None:
    """The file of the flavor is loaded, also in a folder, as older versions of MLflow write it."""
    folder = write_onnx(tmp_path / "doubler")
    assert detect(folder) == Detected("onnx", folder / "model.onnx")
    write_mlmodel(tmp_path / "old", {"onnx": {"data": "data"}})
    (tmp_path / "old" / "data").mkdir()
    (tmp_path / "old" / "data" / "model.onnx").touch()
    assert detect(tmp_path / "old").path == tmp_path / "old" / "data" / "model.onnx"


@pytest.mark.parametrize(
    ("flavor", "saved"),
    [
        ({"data": "data", "model_type": "keras", "save_format": "tf"}, "data/model"),
        ({"saved_model_dir": "tf2model", "signature_def_key": "serving_default"}, "tf2model"),
    ],
)
def test_a_saved_model_is_served_by_tensorflow(tmp_path: Path, flavor: dict[str, Any], saved: str) -> None:
    """TensorFlow loads a SavedModel; the model has the name of MLflow's folder."""
    folder = write_mlmodel(tmp_path / "m", {"tensorflow": flavor, **PYFUNC})
    (folder / saved).mkdir(parents=True)
    (folder / saved / "saved_model.pb").touch()
    assert detect(folder) == Detected("tensorflow", folder / saved)
    assert folder_around(folder / saved) == folder


@pytest.mark.parametrize(
    "flavors",
    [
        PYFUNC,
        {"tensorflow": {"data": "data"}, **PYFUNC},
        {"tensorflow": {"saved_model_dir": "tf", "signature_def_key": "embed"}, **PYFUNC},
        {"tensorflow": {"saved_model_dir": "tf", "meta_graph_tags": ["train"]}, **PYFUNC},
        {"sklearn": {"pickled_model": "model.pkl"}},
    ],
)
def test_the_rest_is_served_by_a_script(tmp_path: Path, flavors: dict[str, Any]) -> None:
    """No runtime loads functions, .keras files, other signatures and graphs, and pickles."""
    folder = write_mlmodel(tmp_path / "m", flavors)
    (folder / "tf").mkdir()
    (folder / "tf" / "saved_model.pb").touch()
    (folder / "data" / "model").mkdir(parents=True)
    (folder / "data" / "model.keras").touch()
    (folder / "model.pkl").touch()
    assert detect(folder) == Detected("mlflow", folder)


def test_a_script_of_the_users_own_comes_first(tmp_path: Path) -> None:
    """A score.py beside MLmodel loads the model itself."""
    folder = write_mlmodel(tmp_path / "m", PYFUNC)
    (folder / "score.py").touch()
    assert detect(folder).framework == "script"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("flavors: {spark: {}}", "in the flavors spark; served are onnx"),
        ("flavors: {}", "in the flavors none"),
        ("run_id: x", "names no flavors"),
        ("flavors: [", "this is not YAML"),
        ("flavors: {onnx: {data: missing.onnx}}", "names missing.onnx, which is not in the folder"),
        ("flavors: {sklearn: {pickled_model: ../../etc/passwd}}", "which is not in the folder"),
    ],
)
def test_unsupported_mlflow_model_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """The message has the flavors of the folder, and those that are served."""
    (tmp_path / "MLmodel").write_text(text)
    with pytest.raises(RepositoryError, match=message):
        detect(tmp_path)


@pytest.mark.parametrize(
    ("signature", "expected"),
    [
        (PRICES, (Column("rooms", "long"), Column("size", "double"))),
        ([{"name": "a", "type": "double", "required": False}], (Column("a", "double", False),)),
        ([{"name": "a", "type": "array", "items": {"type": "long"}}], ()),
        ("neither JSON nor a list", ()),
        (None, ()),
    ],
)
def test_signatures(tmp_path: Path, signature: Any, expected: Any) -> None:
    """Columns and tensors are read; nested types and malformed signatures are left to mlflow."""
    assert MlflowFolder.read(write_mlmodel(tmp_path, PYFUNC, signature)).inputs == expected


ROWS = [[1, 2.5], [3, 4.5]]


@pytest.mark.parametrize(
    "body",
    [
        {"dataframe_split": {"columns": ["rooms", "size"], "data": ROWS}},
        {
            "dataframe_split": {
                "columns": ["size", "other", "rooms"],
                "index": [7, 8],
                "data": [[2.5, "x", 1], [4.5, "y", 3]],
            }
        },
        {"dataframe_records": [{"size": 2.5, "rooms": 1}, {"rooms": 3.0, "size": 4.5, "other": 1}]},
        {"instances": [{"rooms": 1, "size": 2.5}, {"rooms": 3, "size": 4.5}]},
        {"instances": ROWS},
        {"inputs": ROWS},
        {"inputs": {"size": [2.5, 4.5], "rooms": [1, 3]}},
        {"columns": ["rooms", "size"], "data": ROWS},
        "rooms,size\n1,2.5\n3,4.5\n",
        "\ufeffsize,rooms\n2.5,1\n4.5,3\n",
    ],
)
def test_every_format_is_answered(model: MlflowModel, body: Any) -> None:
    """All formats of MLflow's protocol give the same predictions; columns are found by their names."""
    text = body.removeprefix("\ufeff") if isinstance(body, str) else body
    assert ask(model, text) == {"predictions": pytest.approx([105.0, 309.0])}


@pytest.mark.parametrize(
    "value",
    [
        {"columns": ["rooms", "size"], "index": [0, 1], "data": ROWS},
        ROWS,
        {"rooms": [1, 3], "size": [2.5, 4.5]},
    ],
)
def test_azures_body_gets_bare_predictions(model: MlflowModel, value: Any) -> None:
    """Azure's endpoints for models of MLflow take `input_data`, and answer without a key around the predictions."""
    assert ask(model, {"input_data": value}) == pytest.approx([105.0, 309.0])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "got an empty one"),
        ({"data": ROWS}, "got 'data'"),
        ({"inputs": ROWS, "instances": ROWS}, "with one of"),
        ({"inputs": ROWS, "params": {"a": 1}}, "takes no params"),
        ({"dataframe_split": ROWS}, 'with "columns" and "data"'),
        ({"dataframe_split": {"columns": ["rooms"], "data": [[1]]}}, "column 'size' is missing"),
        ({"dataframe_split": {"columns": ["rooms", "size"], "data": [[1]]}}, "one value for each column"),
        ({"dataframe_split": {"columns": ["rooms", "rooms"], "data": ROWS}}, "different names"),
        ({"dataframe_split": {"columns": [{}, "rooms"], "data": ROWS}}, "different names"),
        ({"dataframe_split": {"columns": ["rooms"], "data": []}}, "column 'size' is missing"),
        ({"dataframe_records": [{"rooms": 1}, {"rooms": 1, "size": 2}]}, "column 'size' is missing"),
        ({"dataframe_records": "x"}, "list of objects"),
        ({"inputs": 5}, "must be a list of lists"),
        ("[[1, 2.5]]", "got a list"),
        ({"inputs": [[1.5, 2]]}, "'rooms' is long, got 1.5"),
        ({"inputs": [[None, 2]]}, "'rooms' is long, got null"),
        ({"inputs": [["1", 2]]}, "'rooms' is long"),
        ({"inputs": [[1 << 63, 2]]}, "'rooms' is long"),
        ({"inputs": [[1, True]]}, "'size' is double, got true"),
        ({"inputs": {"rooms": [1], "size": [1, 2]}}, "lists of the same length"),
        ("rooms,size\n1,2,3,4\n1\n1,2,3,4,5,6\n", "neither JSON nor CSV"),
    ],
)
def test_mlflow_request_that_does_not_fit_gets_400(model: MlflowModel, body: Any, message: str) -> None:
    """The message has the expected format; the status is 400, as in MLflow."""
    with pytest.raises(RequestError, match=message) as refusal:
        ask(model, body)
    assert refusal.value.status == 400


def test_types_do_not_depend_on_other_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With a signature each row of a table has the types that it has alone."""
    kinds = ("boolean", "integer", "long", "float", "double", "string", "datetime")
    folder = write_mlmodel(tmp_path, PYFUNC, [{"name": kind, "type": kind} for kind in kinds])
    seen: list[pd.DataFrame] = []

    def predict(table: pd.DataFrame) -> Any:
        seen.append(table)
        return table["double"]

    model = echoing(monkeypatch, folder, predict)
    plain = [True, 1, 2.0, 3, 4, "a", "2024-01-01"]
    others = [[False, 2, 3, 0.5, None, None, None], [True, 0, 0, None, 1e300, "1", 0]]
    ask(model, {"inputs": [plain]})
    ask(model, {"inputs": [plain, *others]})
    alone, together = seen
    assert list(alone.dtypes) == list(together.dtypes)
    assert alone.iloc[0].equals(together.iloc[0])
    assert [str(dtype) for dtype in alone.dtypes[:5]] == ["bool", "int32", "int64", "float32", "float64"]


def test_tensors_have_the_types_of_the_signature(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Arrays get the types of the signature, by name if they have names; other arrays are refused."""
    spec = {"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1, 2]}}
    seen: list[Any] = []
    model = echoing(
        monkeypatch, write_mlmodel(tmp_path, PYFUNC, [spec]), lambda data: seen.append(data) or data
    )
    assert ask(model, {"inputs": [[1, 2]]}) == {"predictions": [[1.0, 2.0]]}
    assert seen[0].dtype == np.float32
    for body, message in (
        ({"inputs": [[1, 2, 3]]}, r"has the shape \[-1, 2\], got \[1, 3\]"),
        ({"inputs": [["a", "b"]]}, "is float32, got"),
        ({"inputs": [[1], [2, 3]]}, "is no array"),
    ):
        with pytest.raises(RequestError, match=message):
            ask(model, body)
    named = [{"name": name, **spec} for name in ("a", "b")]
    model = echoing(
        monkeypatch, write_mlmodel(tmp_path, PYFUNC, named), lambda data: {"sum": data["a"] + data["b"]}
    )
    expected = {"predictions": {"sum": [[4.0, 6.0]]}}
    assert ask(model, {"inputs": {"a": [[1, 2]], "b": [[3, 4]]}}) == expected
    assert ask(model, {"instances": [{"a": [1, 2], "b": [3, 4]}]}) == expected
    with pytest.raises(RequestError, match="inputs b are missing"):
        ask(model, {"inputs": {"a": [[1, 2]]}})


@pytest.mark.parametrize(("dtype", "number"), [("int32", 1 << 31), ("uint8", -1), ("uint8", 256)])
def test_whole_numbers_that_do_not_fit_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dtype: str, number: int
) -> None:
    """A number that the dtype of the signature cannot hold is refused, not cut."""
    spec = {"type": "tensor", "tensor-spec": {"dtype": dtype, "shape": [-1]}}
    model = echoing(monkeypatch, write_mlmodel(tmp_path, PYFUNC, [spec]), lambda data: data)
    assert ask(model, {"inputs": [1, 127]}) == {"predictions": [1, 127]}
    with pytest.raises(RequestError, match=f"is {dtype}, which cannot hold"):
        ask(model, {"inputs": [1, number]})


@pytest.mark.parametrize("value", ["?", "Ω", "YQ"])
def test_binary_columns_are_base64(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str) -> None:
    """Other letters are refused."""
    columns = [{"name": "content", "type": "binary"}]
    model = echoing(
        monkeypatch, write_mlmodel(tmp_path, PYFUNC, columns), lambda table: [len(table["content"][0])]
    )
    assert ask(model, {"inputs": [["YQ=="]]}) == {"predictions": [1]}
    with pytest.raises(RequestError, match="'content' is binary"):
        ask(model, {"inputs": [[value]]})


def test_an_installed_mlflow_loads_the_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With mlflow the function is its own; params reach it, and tables come back as records."""
    folder = write_mlmodel(tmp_path, PYFUNC)

    def predict(data: Any, params: dict[str, Any] | None = None) -> Any:
        return pd.DataFrame({"rows": [len(data)], "with": [params], "at": [dt.date(2024, 1, 1)]})

    model = echoing(monkeypatch, folder, predict)
    assert ask(model, {"dataframe_records": [{"a": 1}, {"a": 2}], "params": {"t": 1}}) == {
        "predictions": [{"rows": 2, "with": {"t": 1}, "at": "2024-01-01"}]
    }
    with pytest.raises(RequestError, match="the same names in the same order"):
        ask(model, {"dataframe_records": [{"a": 1, "b": 1}, {"b": 2, "a": 2}]})


@pytest.mark.parametrize(("name", "key"), [(None, "0"), ("price", "price")])
def test_series_is_answered_as_records(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str | None, key: str
) -> None:
    """MLflow's own server writes it as a table with one column."""
    model = echoing(
        monkeypatch, write_mlmodel(tmp_path, PYFUNC), lambda table: pd.Series([1.5, 2.5], name=name)
    )
    assert ask(model, {"inputs": [[1], [2]]}) == {"predictions": [{key: 1.5}, {key: 2.5}]}


@pytest.mark.parametrize(
    ("missing", "flavors", "message"),
    [("mlflow", PYFUNC, "pip install mlflow"), ("pandas", PYFUNC, "pip install pandas")],
)
def test_missing_packages_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str, flavors: Any, message: str
) -> None:
    """The error says which packages to install."""
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name in (missing, "mlflow") else object()
    )
    with pytest.raises(LoadFailed, match=message):
        MlflowModel(write_mlmodel(tmp_path, flavors))


@pytest.mark.parametrize(
    ("inputs", "info", "value", "expected"),
    [
        (PRICES, {"type": "dataframe", "pandas_orient": "split"}, {"columns": ["rooms", "size"], "data": [[1, 2]]},
         {"dataframe_records": [{"rooms": 1, "size": 2}]}),
        (None, {"type": "dataframe", "pandas_orient": "split"}, {"columns": ["a"], "data": [[1]]},
         {"dataframe_split": {"columns": ["a"], "data": [[1]]}}),
        (None, {"type": "dataframe", "pandas_orient": "records"}, [{"a": 1}],
         {"dataframe_split": {"columns": ["a"], "data": [[1]]}}),
        (None, {"type": "ndarray"}, {"inputs": [[1]]}, {"inputs": [[1]]}),
        (None, {"type": "json_object"}, ["a"], {"inputs": ["a"]}),
    ],
)  # fmt: skip
def test_the_input_example_is_the_sample(
    tmp_path: Path, inputs: Any, info: dict[str, Any], value: Any, expected: Any
) -> None:
    """It becomes a request; only rows whose types a signature fixes become records, which are merged."""
    folder = write_mlmodel(tmp_path / "m", PYFUNC, inputs, (info, value))
    assert sample_request(folder, arrays=False) == expected
    assert json.loads(write_sample(expected, tmp_path / "run").read_text()) == expected
    (folder / "serving_input_example.json").write_text('{"inputs": [7]}')
    assert sample_request(folder, arrays=False) == {"inputs": [7]}
    assert sample_request(write_mlmodel(tmp_path / "none", PYFUNC), arrays=False) is None


def test_runtimes_take_examples_of_arrays_alone(tmp_path: Path) -> None:
    """A model that a runtime loads gets the example if its signature is of tensors; tables it could not read."""
    spec = {"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1, 2]}}
    array = ({"type": "ndarray"}, {"inputs": [[1.0, 2.0]]})
    assert sample_request(write_mlmodel(tmp_path, {}, [spec], array), arrays=True) == {"inputs": [[1.0, 2.0]]}
    assert sample_request(write_mlmodel(tmp_path, {}, None, array), arrays=True) is None
    table = ({"type": "dataframe", "pandas_orient": "split"}, {"columns": ["a"], "data": [[1]]})
    assert sample_request(write_mlmodel(tmp_path, {}, [spec], table), arrays=True) is None


@pytest.mark.usefixtures("without_flask")
def test_the_entry_script_serves_the_folder(sklearn: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stoker's script works like any other: `init` loads the folder that the server names, `run` answers."""
    monkeypatch.setenv("AZUREML_MODEL_DIR", str(sklearn))
    script = EntryScript(ENTRY_SCRIPT, sklearn)
    script.initialise(lambda result: result)
    calls = ScriptCalls(script.run, raw=script.raw)
    assert not calls.wants_head
    answer = calls.answer(ScriptRequest(b"id", b'{"input_data": [[1, 2.5]]}'))
    assert json.loads(answer.body) == pytest.approx([105.0])
    for body in (b'{"inputs": [["a", 1]]}', b'{"inputs": ['):
        assert calls.answer(ScriptRequest(b"id", body)).status == 400


def test_python_env_is_an_environment_file(sklearn: Path, tmp_path: Path) -> None:
    """MLflow's own file says the version of Python and refers to the requirements; conda.yaml comes before it."""
    found = find_environment(sklearn)
    assert found == sklearn / "python_env.yaml"
    specification = read_environment(found)
    assert [entry.text for entry in specification.entries] == ["scikit-learn", "pandas"]
    assert "3.11.9" in specification.python
    assert "3.12.1" not in specification.python
    for text, message in (
        ("dependencies: x", "must be a list of lines"),
        ("pythn: 3", "no section 'pythn'"),
        ("python: new", "must be a version"),
    ):
        (tmp_path / "python_env.yaml").write_text(text)
        with pytest.raises(EnvironmentUnusable, match=message):
            read_environment(tmp_path / "python_env.yaml")
