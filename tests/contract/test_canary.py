"""Versions that share the requests which name none: by every protocol, by turns and by what sticks."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import msgspec
import pytest
from tests.contract.in_process import KEY, InProcessServer
from tests.http.raw_http import bearer
from tests.puppets import PuppetRuntime

from stoker.gateway.served_models import ServedModel, ServedVersion
from stoker.settings.versions import VersionStatus
from stoker.takeover.traffic_split import Split

OIP = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}'
ROWS = b'{"data": [[1, 2]]}'
INSTANCES = b'{"instances": [[1, 2]]}'


@pytest.fixture(scope="module")
def server() -> Iterator[InProcessServer]:
    """Version 1 doubles, version 2 triples."""
    triple = PuppetRuntime(answer=lambda inputs: [inputs[0] * 3])
    with InProcessServer({"model": PuppetRuntime(), "two": triple}, key=KEY) as running:
        yield running


def split(server: InProcessServer, header: bytes = b"") -> None:
    """Send three of four requests to version 1."""
    first, second = (server.gateway.directory.models[name].versions[number].service for name, number in _HOME)
    assert first is not None
    assert second is not None
    second.facts = msgspec.structs.replace(second.facts, version="2")
    served = {one.version: ServedVersion(VersionStatus(0, "AVAILABLE"), one) for one in (first, second)}
    server.gateway.route("model", ServedModel(served, "1", {"next": "2"}, Split({"1": 3, "2": 1}, header)))


_HOME = (("model", "1"), ("two", "1"))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/v1/service/model/score", ROWS),
        ("/api/v1/service/model/invocations", INSTANCES),
        ("/v2/models/model/infer", OIP),
        ("/v1/models/model:predict", INSTANCES),
    ],
)
def test_every_protocol_takes_turns(server: InProcessServer, path: str, body: bytes) -> None:
    """Exactly; a request with a wrong key takes none."""
    split(server)
    answers = []
    for _ in range(8):
        refused = server.ask("POST", path, [bearer("no-key-of-this-server-at-all")], body)
        assert refused.status == 401
        answers.append(server.ask("POST", path, body=body))
    assert {answer.status for answer in answers} == {200}
    shown = Counter("6.0" in answer.body.decode() for answer in answers)
    assert shown == {False: 6, True: 2}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v2/models/model/versions/1/infer", OIP),
        ("/v1/models/model/versions/1:predict", INSTANCES),
    ],
)
def test_a_named_version_answers_regardless_of_weights(
    server: InProcessServer, path: str, body: bytes
) -> None:
    """A request that names a version or a label gets it despite the weights."""
    split(server)
    answers = [server.ask("POST", path, body=body).body.decode() for _ in range(5)]
    assert all("4.0" in answer and "6.0" not in answer for answer in answers)
    assert "6.0" in server.ask("POST", "/v1/models/model/labels/next:predict", body=INSTANCES).body.decode()


def test_a_caller_sticks_to_a_version(server: InProcessServer) -> None:
    """By a header; by the key all callers with one key are one."""
    split(server, b"x-user")

    def answer(user: str) -> str:
        reply = server.ask("POST", "/api/v1/service/model/score", [("X-User", user)], ROWS)
        return json.dumps(reply.json())

    first = {user: answer(user) for user in map(str, range(12))}
    assert len(set(first.values())) == 2
    assert {user: answer(user) for user in first} == first
    split(server, b"authorization")
    assert len({answer(user) for user in first}) == 1
