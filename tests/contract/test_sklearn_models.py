"""Models of scikit-learn without a script over HTTP: Azure's bodies with a method, and those of other protocols."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.contract.in_process import DOORS, InProcessServer
from tests.estimators import COLUMNS, classifier, regression, save

from stoker.runtimes.base import Runtime
from stoker.runtimes.sklearn import load_sklearn
from stoker.servable import Device, Servable

ROWS = [[1, 1], [4, 1]]
SCORES = [[1.0, 0.0], [0.0, 1.0]]
TABLE = {"columns": COLUMNS[::-1], "data": [[1, 1], [1, 4]]}
RECORDS = [dict(zip(COLUMNS, row, strict=True)) for row in ROWS]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessServer]:
    """A regression, and a classifier that was fitted on a table."""

    def runtime(name: str, estimator: Any) -> Runtime:
        path = save(estimator, tmp_path_factory.mktemp(name) / "model.pkl")
        servable = Servable(name, 1, "sklearn", path, path.parent, 8, 1000)
        return load_sklearn(servable, Device("cpu", 0, "a processor"), os.cpu_count() or 1)

    places = [*sys.path]
    models = {"prices": runtime("prices", regression()), "homes": runtime("homes", classifier(columns=True))}
    sys.path[:] = places
    with InProcessServer(models) as running:
        yield running


def ask(server: InProcessServer, path: str, content: Any, status: int = 200, door: str = "direct") -> Any:
    answer = server.ask("POST", path, DOORS[door], json.dumps(content).encode())
    assert answer.status == status, answer.body
    return json.loads(answer.body)


def score(server: InProcessServer, name: str, content: Any, status: int = 200, door: str = "direct") -> Any:
    return ask(server, f"/api/v1/service/{name}/score", content, status, door)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("named", "answer"),
    [
        ({}, {"predict_proba": SCORES}),
        ({"method": None}, {"predict_proba": SCORES}),
        ({"method": "predict_proba"}, {"predict_proba": SCORES}),
        ({"method": "predict"}, {"predict": ["flat", "house"]}),
    ],
)
def test_a_body_names_the_method(server: InProcessServer, named: Any, answer: Any, door: str) -> None:
    """As on Azure: the answer has its name too, and without one a classifier gives its scores."""
    assert score(server, "homes", {"data": ROWS, **named}, door=door) == answer


def test_a_model_with_one_method(server: InProcessServer) -> None:
    """Its answer has the name all the same, also where many are answered together."""
    with ThreadPoolExecutor(8) as threads:
        bodies = [{"data": [[number, 1]]} for number in range(40)]
        answers = list(threads.map(lambda body: score(server, "prices", body), bodies))
    assert [answer["predict"] for answer in answers] == [[pytest.approx(100 * n + 2)] for n in range(40)]
    assert score(server, "prices", {"data": [[2, 30.5]], "method": "predict"}) == {
        "predict": [pytest.approx(261)]
    }


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"data": ROWS, "method": "transform"}, 422, "served here, predict, predict_proba; got 'transform'"),
        ({"data": ROWS, "method": 1}, 422, "got something else than a text"),
        ({"data": [[1, 2, 3]]}, 422, "Expected data float64[?,2], got the shape [1, 3]"),
        ({"data": [{"rooms": 1}]}, 422, "objects with the keys rooms, size; row 0 is not one"),
        ({"method": "predict"}, 422, 'The key "data" is missing'),
        ({"input_data": {"columns": ["rooms"], "data": [[1]]}}, 422, "the inputs of the model (rooms, size)"),
    ],
)
def test_refusals(server: InProcessServer, body: Any, status: int, message: str) -> None:
    """What is asked for and is not there is said with what is."""
    assert message in score(server, "homes", body, status)["message"]


@pytest.mark.parametrize("body", [{"data": RECORDS}, {"input_data": TABLE}, {"input_data": ROWS}])
def test_columns_are_found_by_their_names(server: InProcessServer, body: Any) -> None:
    """In rows that are objects and in tables, in whatever order they stand there."""
    assert score(server, "homes", body) == {"predict_proba": SCORES}


@pytest.mark.parametrize(
    "body", [{"dataframe_split": TABLE}, {"dataframe_records": RECORDS}, {"instances": ROWS}]
)
def test_mlflows_bodies(server: InProcessServer, body: Any) -> None:
    """They mean `predict`, as MLflow's own server does."""
    path = "/api/v1/service/homes/invocations"
    assert ask(server, path, body) == {"predictions": ["flat", "house"]}


def test_tensors(server: InProcessServer) -> None:
    """The Open Inference Protocol means `predict`, TensorFlow Serving's may name it; metadata say the columns."""
    metadata = json.loads(server.ask("GET", "/v2/models/homes").body)
    assert metadata["parameters"]["labels"] == {"data": COLUMNS}
    assert metadata["inputs"] == [{"name": "data", "datatype": "FP64", "shape": [-1, 2]}]
    tensor = {"name": "data", "shape": [2, 2], "datatype": "FP64", "data": [1, 1, 4, 1]}
    (output,) = ask(server, "/v2/models/homes/infer", {"inputs": [tensor]})["outputs"]
    assert (output["name"], output["data"]) == ("predict", ["flat", "house"])
    named = {"signature_name": "predict_proba", "instances": ROWS}
    assert ask(server, "/v1/models/homes:predict", named) == {"predictions": SCORES}


def test_the_description_names_the_method(server: InProcessServer) -> None:
    """Of a model with one: what stands in the body, and in the answer."""
    described = json.loads(server.ask("GET", "/api/v1/service/prices/swagger.json").body)["definitions"]
    assert described["ServiceInput"]["properties"]["method"]["enum"] == ["predict"]
    assert list(described["ServiceOutput"]["properties"]) == ["predict"]
