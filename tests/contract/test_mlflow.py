"""MLflow's scoring protocol over HTTP: for models of tensors and for scripts, beside Azure's body for such models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.contract.in_process import KEY, InProcessServer, script
from tests.puppets import PuppetRuntime

from stoker import __version__
from stoker.settings.traffic import Endpoint


def echo(raw_data: str) -> Any:
    return {"predictions": raw_data}


@pytest.fixture(scope="module")
def server() -> Iterator[InProcessServer]:
    """A model that doubles rows of two numbers, and a script."""
    runtimes = {"doubler": PuppetRuntime(), "prices": script(echo)}
    with InProcessServer(runtimes, key=KEY) as running:
        yield running


def invoke(server: InProcessServer, body: Any, name: str = "doubler", kind: str = "application/json") -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = server.ask("POST", f"/api/v1/service/{name}/invocations", [("Content-Type", kind)], data)
    assert answer.header("content-type") == "application/json"
    return answer.status, json.loads(answer.body)


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ({"instances": [[1, 2], [3, 4]]}, {"predictions": [[2, 4], [6, 8]]}),
        ({"inputs": [[1, 2], [3, 4]]}, {"predictions": [[2, 4], [6, 8]]}),
        ({"inputs": {"x": [[1, 2]]}}, {"predictions": [[2, 4]]}),
        (
            {"dataframe_split": {"columns": ["x"], "data": [[[1, 2]], [[3, 4]]]}},
            {"predictions": [[2, 4], [6, 8]]},
        ),
        ({"dataframe_records": [{"x": [1, 2]}]}, {"predictions": [[2, 4]]}),
        ({"input_data": [[1, 2]]}, [[2, 4]]),
        ({"input_data": {"columns": ["x"], "index": [0], "data": [[[1, 2]]]}}, [[2, 4]]),
    ],
)
def test_tensors(server: InProcessServer, body: Any, answer: Any) -> None:
    """Each format becomes the rows of the model; the answer has MLflow's key, and none for Azure's body."""
    assert invoke(server, body) == (200, answer)


@pytest.mark.parametrize(
    "value", [[[1, 2]], {"x": [[1, 2]]}, {"columns": ["x"], "index": [0], "data": [[[1, 2]]]}]
)
def test_azures_body_is_scored(server: InProcessServer, value: Any) -> None:
    """`input_data` is taken at the scoring path as `data` is, and answered alike."""
    path = "/api/v1/service/doubler/score"
    answers = [server.ask("POST", path, body=json.dumps({key: data}).encode()) for key, data in
               (("input_data", value), ("data", [[1, 2]]))]  # fmt: skip
    assert [answer.status for answer in answers] == [200, 200]
    assert answers[0].body == answers[1].body


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"data": [[1, 2]]}, 400, "exactly one of dataframe_split"),
        ([[1, 2]], 400, "exactly one of"),
        ({"inputs": [[1, 2]], "instances": [[1, 2]]}, 400, "exactly one of"),
        ({"inputs": [[1, 2]], "params": {"top": 1}}, 422, "takes no params"),
        ({"inputs": [[1, 2, 3]]}, 422, "Expected x"),
        ({"dataframe_split": {"columns": ["a"], "data": [[1]]}}, 422, "must be the inputs of the model (x)"),
        ({"dataframe_split": {"columns": ["x"], "data": [[1, 2]]}}, 422, "one value for each column"),
        ({"dataframe_split": [1]}, 422, 'with "columns" and "data"'),
        (b"{", 400, "not valid JSON"),
    ],
)
def test_refusals(server: InProcessServer, body: Any, status: int, message: str) -> None:
    """A body that does not fit is the caller's fault, in the form of the scoring protocol."""
    got, content = invoke(server, body)
    assert got == status
    assert message in content["message"]


def test_csv_is_for_tables(server: InProcessServer) -> None:
    """A script gets CSV as its text; the error of a model of arrays names its input."""
    assert invoke(server, b"a,b\n1,2\n", "prices", "text/csv") == (200, {"predictions": "a,b\n1,2\n"})
    assert invoke(server, b"a,b\n1,2\n", "doubler", "text/csv")[0] == 415


def test_keys_and_methods(server: InProcessServer) -> None:
    """Invocations need a key as scoring does, and are posted."""
    path = "/api/v1/service/{}/invocations"
    with server.connect() as connection:
        for name in ("doubler", "prices"):
            target = path.format(name).encode()
            connection.send(b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}" % target)
            assert connection.answer().status == 401
    assert server.ask("GET", path.format("prices")).status == 405
    assert server.ask("POST", path.format("none"), body=b"{}").status == 404
    assert server.ask("POST", "/invocations", body=b"{}").status == 404


def test_health_and_version(server: InProcessServer) -> None:
    """The paths that MLflow's clients and platforms look at; not ready is 503."""
    for path in ("/ping", "/health"):
        assert server.ask("GET", path).status == 200
    assert server.ask("GET", "/version").body.decode() == __version__
    service = server.gateway.directory.services["prices"]
    exchanges = list(service.exchanges)
    service.exchanges.clear()
    try:
        assert server.ask("GET", "/ping").status == 503
    finally:
        service.exchanges.extend(exchanges)


def test_the_only_model_needs_no_name() -> None:
    """One model, or the deployments of an endpoint by their shares, are at `/invocations`."""
    with InProcessServer(PuppetRuntime(), tells_version=False) as alone:
        assert json.loads(alone.ask("POST", "/invocations", body=b'{"inputs": [[1, 2]]}').body) == {
            "predictions": [[2, 4]]
        }
        assert alone.ask("GET", "/version").status == 404
    endpoint = Endpoint("shop", {"blue": 50, "green": 50})
    body = b'{"inputs": [[1, 2]]}'
    with InProcessServer({"blue": PuppetRuntime(), "green": script(echo)}, endpoint=endpoint) as both:
        for name, answered in (("blue", [[2, 4]]), ("green", body.decode())):
            answer = both.ask("POST", "/invocations", body=body)
            assert answer.header("azureml-model-deployment") == name
            assert json.loads(answer.body) == {"predictions": answered}
        assert both.ask("POST", "/invocations", body=body).status == 200
        both.gateway.directory.services.pop("green")
        assert both.ask("POST", "/invocations", body=b'{"inputs": [[1, 2]]}').status == 503
