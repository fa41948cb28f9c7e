"""Classifiers that end in a ZipMap, with `zipmap: objects`: JSON that can say so has an object for each row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import onnx
import pytest
from tests.contract.in_process import DOORS, InProcessServer
from tests.zoo import classifier

from stoker.deployment import Deployment, Device
from stoker.errors import LoadFailed
from stoker.runtimes.base import Runtime
from stoker.runtimes.onnx.loading import load_onnx

NUMBERS, WORDS = (4, 5, 6), ("cat", "dog", "emu")
ROWS = [[1, 2, 3, 4], [6, 5, 4, 3]]
SCORES = [[1.0, 2.5, 4.0], [6.0, 5.5, 5.0]]
CLASSES: dict[str, tuple[Any, ...]] = {"rows": NUMBERS, "words": WORDS, "alone": NUMBERS}
LABELS = {"rows": [6, 4], "words": ["emu", "cat"]}


def runtime(folder: Path, data: bytes, **settings: Any) -> Runtime:
    path = folder / "model.onnx"
    path.write_bytes(data)
    deployment = Deployment("classes", 1, "onnx", path, folder, 8, 1000, zipmap="objects", **settings)
    return load_onnx(deployment, Device("cpu", 0, "a processor"), 1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessServer]:
    """Three of them: rows of two outputs, requests with words, and scores as the only output."""
    models = {
        name: runtime(tmp_path_factory.mktemp(name), classifier(classes, alone=name == "alone"))
        for name, classes in CLASSES.items()
    }
    with InProcessServer(models) as server:
        yield server


def objects(model: str) -> list[dict[str, float]]:
    return [dict(zip(map(str, CLASSES[model]), row, strict=True)) for row in SCORES]


def ask(server: InProcessServer, path: str, content: Any, door: str = "direct") -> Any:
    answer = server.ask("POST", path, DOORS[door], json.dumps(content).encode())
    assert answer.status == 200, answer.body
    return json.loads(answer.body)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("model", CLASSES)
def test_azures_answers_have_objects(server: InProcessServer, model: str, door: str) -> None:
    """The scores of each row are by the names of the classes, through both paths."""
    answer = ask(server, f"/api/v1/service/{model}/score", {"data": ROWS}, door)
    wanted: Any = objects(model)
    if model in LABELS:
        wanted = {"label": LABELS[model], "probabilities": wanted}
    assert answer == wanted


def test_answers_that_are_written_together_have_objects(server: InProcessServer) -> None:
    """Each caller of many at once gets those of its row."""
    wanted = objects("alone")
    path = "/api/v1/service/alone/score"
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda n: ask(server, path, {"data": [ROWS[n % 2]]}), range(40)))
    assert answers == [[wanted[number % 2]] for number in range(40)]


@pytest.mark.parametrize("model", CLASSES)
def test_tensorflow_servings_answers_have_objects(server: InProcessServer, model: str) -> None:
    """In row format and in column format, and so have MLflow's."""
    path, wanted = f"/v1/models/{model}:predict", objects(model)
    by_row, by_column = ask(server, path, {"instances": ROWS}), ask(server, path, {"inputs": ROWS})
    assert ask(server, f"/api/v1/service/{model}/invocations", {"instances": ROWS}) == by_row
    if model in LABELS:
        pairs = zip(LABELS[model], wanted, strict=True)
        assert by_row == {"predictions": [{"label": one, "probabilities": row} for one, row in pairs]}
        assert by_column == {"outputs": {"label": LABELS[model], "probabilities": wanted}}
    else:
        assert (by_row, by_column) == ({"predictions": wanted}, {"outputs": wanted})


@pytest.mark.parametrize("model", CLASSES)
def test_the_open_inference_protocol_has_tensors(server: InProcessServer, model: str) -> None:
    """Its outputs, and its metadata, are those of a model without the setting."""
    given = {"name": "x", "shape": [2, 4], "datatype": "FP32", "data": ROWS}
    output = ask(server, f"/v2/models/{model}/infer", {"inputs": [given]})["outputs"][-1]
    assert (output["datatype"], output["shape"]) == ("FP32", [2, 3])
    assert output["data"] == [*SCORES[0], *SCORES[1]]
    described = json.loads(server.ask("GET", f"/v2/models/{model}").body)
    assert described["parameters"]["labels"] == {"probabilities": list(map(str, CLASSES[model]))}


def test_the_description_says_objects(server: InProcessServer) -> None:
    """Each class is a property of a row."""
    path = "/api/v1/service/alone/swagger.json"
    output = json.loads(server.ask("GET", path).body)["definitions"]["ServiceOutput"]
    assert output["items"]["required"] == ["4", "5", "6"]
    assert output["items"]["properties"]["5"] == {"type": "number", "format": "float32"}


def test_a_model_without_a_zipmap_is_not_loaded(tmp_path: Path) -> None:
    """The reason names the file and the setting."""
    model = onnx.load_from_string(classifier(NUMBERS))
    del model.graph.output[1]
    with pytest.raises(LoadFailed, match=r"model\.onnx has no output that is a ZipMap .* leave zipmap out"):
        runtime(tmp_path, model.SerializeToString())


def test_a_zipmap_of_other_columns_is_not_loaded(tmp_path: Path) -> None:
    """There would be scores without a name."""
    model = onnx.load_from_string(classifier(NUMBERS))
    classes = next(one for one in model.graph.node[1].attribute if one.name == "classlabels_int64s")
    del classes.ints[2:]
    with pytest.raises(LoadFailed, match="cannot be written as objects with its 2 classes"):
        runtime(tmp_path, model.SerializeToString())
