"""Models of scikit-learn without a script over HTTP: Azure's bodies with a method, and those of other protocols."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from tests.contract.in_process import DOORS, InProcessServer
from tests.estimators import COLUMNS, MIXED, classifier, mixed, regression, save

from stoker.deployment import Deployment, Device
from stoker.runtimes.base import Runtime
from stoker.runtimes.sklearn import load_sklearn

ROWS = [[1, 1], [4, 1]]
SCORES = [[1.0, 0.0], [0.0, 1.0]]
TABLE = {"columns": COLUMNS[::-1], "data": [[1, 1], [1, 4]]}
USED = [name for name in MIXED if name != "owner"]
HOUSES: list[list[Any]] = [
    [1.5, "Rome", "new", True, 2, "Ann", "2000-01-01"],
    [None, "Bonn", "new", True, 1, None, "2020-02-29"],
]
HOUSE_RECORDS = [dict(zip(MIXED, row, strict=True)) for row in HOUSES]
HOUSE_ROWS = [[record[name] for name in USED] for record in HOUSE_RECORDS]
HOUSE_SCORES = [[0.0, 1.0], [1.0, 0.0]]
RECORDS = [dict(zip(COLUMNS, row, strict=True)) for row in ROWS]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessServer]:
    """A regression, a classifier that was fitted on a table, and one whose table has texts."""

    def runtime(name: str, estimator: Any) -> Runtime:
        path = save(estimator, tmp_path_factory.mktemp(name) / "model.pkl")
        deployment = Deployment(name, 1, "sklearn", path, path.parent, 8, 1000)
        return load_sklearn(deployment, Device("cpu", 0, "a processor"), os.cpu_count() or 1)

    places = [*sys.path]
    models = {
        "prices": runtime("prices", regression()),
        "homes": runtime("homes", classifier(columns=True)),
        "houses": runtime("houses", mixed()),
    }
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
    """The error names the missing method, and the methods that there are."""
    assert message in score(server, "homes", body, status)["message"]


@pytest.mark.parametrize("body", [{"data": RECORDS}, {"input_data": TABLE}, {"input_data": ROWS}])
def test_columns_are_found_by_their_names(server: InProcessServer, body: Any) -> None:
    """This holds for rows that are objects and for tables, in any order of columns."""
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


def test_the_description_has_the_columns(server: InProcessServer) -> None:
    """With their types and the methods; the row that is its example is answered."""
    described = json.loads(server.ask("GET", "/api/v1/service/houses/swagger.json").body)["definitions"]
    given = described["ServiceInput"]
    row = given["properties"]["data"]["items"]
    assert [(name, one["type"]) for name, one in row["properties"].items()] == [
        *(("size", "number"), ("city", "string"), ("note", "string")),
        *(("garden", "boolean"), ("rooms", "number"), ("built", "string")),
    ]
    assert given["properties"]["method"]["enum"] == ["predict", "predict_proba"]
    assert score(server, "houses", given["example"]) == {"predict_proba": [[1, 0]]}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    "body",
    [
        {"data": HOUSES},
        {"data": HOUSE_ROWS},
        {"data": HOUSE_RECORDS},
        {"data": [{name: record[name] for name in USED[::-1]} for record in HOUSE_RECORDS]},
        {"data": {name: [record[name] for record in HOUSE_RECORDS] for name in USED}},
        {"input_data": HOUSES},
        {"input_data": HOUSE_RECORDS},
        {"input_data": {"columns": MIXED, "index": [0, 1], "data": HOUSES}},
        {"input_data": {"columns": USED[::-1], "data": [row[::-1] for row in HOUSE_ROWS]}},
    ],
)
def test_a_table_with_texts_in_azures_bodies(server: InProcessServer, body: Any, door: str) -> None:
    """Rows are lists of all columns or of those that it looks at, objects, or a table; null is a missing value."""
    assert score(server, "houses", body, door=door) == {"predict_proba": HOUSE_SCORES}
    assert score(server, "houses", {**body, "method": "predict"}, door=door) == {"predict": ["house", "flat"]}


@pytest.mark.parametrize(
    ("name", "rows", "scores", "labels"),
    [
        ("houses", HOUSE_RECORDS, HOUSE_SCORES, ["house", "flat"]),
        ("homes", RECORDS, SCORES, ["flat", "house"]),
    ],
)
def test_automls_bodies(server: InProcessServer, name: str, rows: Any, scores: Any, labels: Any) -> None:
    """They are those of the scripts that Azure writes, with `predict` as the default method."""
    body = {"Inputs": {"data": rows}, "GlobalParameters": {"method": "predict_proba"}}
    assert score(server, name, body) == {"Results": scores}
    assert score(server, name, {"Inputs": {"WebServiceInput0": rows}, "GlobalParameters": 1.0}) == {
        "Results": labels
    }
    assert "its only value" in score(server, name, {"Inputs": rows}, 422)["message"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[1.5, "Rome"]], "Row 0 has 2 values; a row has 6: size, city, note, garden, rooms, built"),
        (
            [{"size": 1.5}],
            "Row 0 has no column 'city'; the columns are size, city, note, garden, rooms, built",
        ),
        ([HOUSES[0], HOUSE_RECORDS[0]], "Rows must all be lists of the values of size, city"),
        ([HOUSES[0], HOUSE_ROWS[0]], "Row 1 has 6 values; a row has 7: size, city"),
        ([[1.5, 7, "new", True, 2, "2000-01-01"]], "city: expected strings"),
        ([["big", "Rome", "new", True, 2, "2000-01-01"]], "size: expected numbers"),
        ([[1.5, "Rome", "new", None, 2, "2000-01-01"]], "garden: expected booleans"),
        ([[1.5, ["Rome"], "new", True, 2, "2000-01-01"]], "Expected city string[?]"),
        ([[1.5, "Oslo", "new", True, 2, "2000-01-01"]], "Found unknown categories ['Oslo']"),
        ([[1.5, "Rome", "new", True, 2, "soon"]], "The column built holds dates"),
        ({"city": ["Rome"]}, "The column 'size' is missing"),
        ([], "Rows must all be lists"),
        ("Rome", "Expected a list of rows"),
    ],
)
def test_rows_that_do_not_fit_a_table_get_422(server: InProcessServer, rows: Any, message: str) -> None:
    """The error names the column in all protocols, and other requests are answered."""
    with ThreadPoolExecutor(4) as threads:
        good = [threads.submit(score, server, "houses", {"data": HOUSES}) for _ in range(3)]
        assert message in score(server, "houses", {"data": rows}, 422)["message"]
        assert [one.result() for one in good] == [{"predict_proba": HOUSE_SCORES}] * 3
    assert ask(server, "/v1/models/houses:predict", {"instances": rows}, 400)["error"]


@pytest.mark.parametrize(
    "body",
    [
        {"dataframe_split": {"columns": MIXED, "data": HOUSES}},
        {"dataframe_records": HOUSE_RECORDS},
        {"instances": HOUSES},
        {"inputs": HOUSE_ROWS},
    ],
)
def test_a_table_with_texts_in_mlflows_bodies(server: InProcessServer, body: Any) -> None:
    """As MLflow's own server takes them for such a model."""
    assert ask(server, "/api/v1/service/houses/invocations", body) == {"predictions": ["house", "flat"]}


def column(name: str, datatype: str, values: list[Any], *, deep: bool = False) -> dict[str, Any]:
    return {
        "name": name,
        "shape": [len(values), 1] if deep else [len(values)],
        "datatype": datatype,
        "data": values,
    }


def house_columns(*, deep: bool = False) -> list[dict[str, Any]]:
    types = {"size": "FP32", "garden": "BOOL", "rooms": "INT64"}
    return [
        column(name, types.get(name, "BYTES"), [record[name] for record in HOUSE_RECORDS], deep=deep)
        for name in MIXED
    ]


@pytest.mark.parametrize("deep", [False, True])
def test_a_tensor_a_column(server: InProcessServer, deep: bool) -> None:
    """With pandas' content type, as MLServer takes it: `[rows]` or `[rows, 1]`, other types where they convert."""
    path = "/v2/models/houses/infer"
    body: dict[str, Any] = {"parameters": {"content_type": "pd"}, "inputs": house_columns(deep=deep)}
    (output,) = ask(server, path, body)["outputs"]
    assert (output["name"], output["data"]) == ("predict", ["house", "flat"])
    body["outputs"] = [{"name": "predict_proba"}]
    (output,) = ask(server, path, body)["outputs"]
    assert (output["name"], output["shape"], output["data"]) == ("predict_proba", [2, 2], [0, 1, 1, 0])


@pytest.mark.parametrize("name", ["data", "predict", "input-0", "input_0", "args"])
@pytest.mark.parametrize(
    ("datatype", "data"), [("FP64", [1, 1, 4, 1]), ("FP32", [1, 1, 4, 1]), ("INT64", [[1, 1], [4, 1]])]
)
def test_the_only_input_has_any_name(server: InProcessServer, name: str, datatype: str, data: Any) -> None:
    """As KServe's and MLServer's clients call it, with the types that they send, also behind the JSON."""
    tensor = {"name": name, "shape": [2, 2], "datatype": datatype}
    wanted = {"outputs": [{"name": "predict_proba", "parameters": {"binary_data": False}}]}
    for _ in range(2):
        (output,) = ask(server, "/v2/models/homes/infer", {"inputs": [{**tensor, "data": data}], **wanted})[
            "outputs"
        ]
        assert output["data"] == [1, 0, 0, 1]
        content = np.array(ROWS, {"FP64": "<f8", "FP32": "<f4", "INT64": "<i8"}[datatype]).tobytes()
        head = json.dumps(
            {"inputs": [{**tensor, "parameters": {"binary_data_size": len(content)}}], **wanted}
        ).encode()
        lengths = [("inference-header-content-length", str(len(head)))]
        answer = server.ask("POST", "/v2/models/homes/infer", lengths, head + content)
        assert json.loads(answer.body)["outputs"][0]["data"] == [1, 0, 0, 1], answer.body


def test_a_matrix_may_come_by_its_columns(server: InProcessServer) -> None:
    """This holds for a model that takes one matrix too, in any order of columns."""
    columns = [column("size", "FP32", [1, 1]), column("rooms", "INT64", [1, 4])]
    (output,) = ask(server, "/v2/models/homes/infer", {"inputs": columns})["outputs"]
    assert output["data"] == ["flat", "house"]


@pytest.mark.parametrize(
    ("model", "change", "message"),
    [
        ("houses", {"inputs": house_columns()[1:]}, "Missing: 'size'"),
        (
            "houses",
            {"inputs": [*house_columns(), column("x", "FP32", [1, 2])]},
            "unexpected inference input 'x'",
        ),
        (
            "houses",
            {"inputs": [column("size", "BYTES", ["1", "2"]), *house_columns()[1:]]},
            "data-type is 'BYTES'",
        ),
        ("houses", {"inputs": [column("size", "FP32", [1]), *house_columns()[1:]]}, "got: size 1, city 2"),
        (
            "houses",
            {"outputs": [{"name": "predict"}, {"name": "predict_proba"}]},
            "of which a request asks one",
        ),
        ("houses", {"outputs": [{"name": "transform"}]}, "unexpected inference output 'transform'"),
        (
            "homes",
            {"inputs": [column("size", "INT64", [1 << 60]), column("rooms", "FP32", [1])]},
            "has an integer that",
        ),
        ("homes", {"inputs": [column("a", "WHAT", [1])]}, "expects one of BOOL, UINT8"),
        ("homes", {"inputs": []}, "expected 1 inputs but got 0"),
    ],
)
def test_tensors_that_do_not_fit(server: InProcessServer, model: str, change: Any, message: str) -> None:
    """The error names the expected tensor."""
    body = {"inputs": house_columns(), **change}
    assert message in ask(server, f"/v2/models/{model}/infer", body, 400)["error"]
