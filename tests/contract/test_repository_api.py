"""The model repository extension over HTTP: rights, requests to the supervisor, refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.contract.in_process import InProcessServer, script
from tests.http.raw_http import Answer, bearer
from tests.puppet_supervisor import PuppetSupervisor, with_admin_key

from stoker.control.frontend_messages import (
    AdminRules,
    Ask,
    AskEvents,
    AskIndex,
    AskLoad,
    AskShift,
    AskUnload,
    Refusal,
)
from stoker.gateway.administration import AdminAccess, admin_access
from stoker.keys.keyring import AdminKey
from stoker.settings.choices import Adjustments
from stoker.settings.traffic import Canary
from stoker.settings.versions import VersionPolicy

KEY = "the-admin-key-of-the-tests"
ENTRIES = ({"name": "model", "version": "1", "state": "READY"}, {"name": "other"})


@pytest.fixture(scope="module")
def running() -> Iterator[InProcessServer]:
    """A server of one script."""
    with InProcessServer(script(lambda raw_data: raw_data)) as server:
        yield server


@pytest.fixture
def supervisor(running: InProcessServer) -> PuppetSupervisor:
    """A supervisor that does all that is requested."""
    return PuppetSupervisor(running.gateway, with_admin_key(KEY), ENTRIES)


def post(
    server: InProcessServer, path: str, body: str = "", headers: Sequence[tuple[str, str]] = (bearer(KEY),)
) -> Answer:
    """POST below `/v2/repository` with the admin key."""
    return server.ask("POST", f"/v2/repository{path}", headers, body.encode())


def test_the_index_is_the_supervisors(running: InProcessServer, supervisor: PuppetSupervisor) -> None:
    """It is put together of the parts that the supervisor sends; `ready` has to be a boolean."""
    assert post(running, "/index", headers=()).json() == list(ENTRIES)
    assert post(running, "/index", '{"ready": true}', ()).status == 200
    assert supervisor.requests == [AskIndex(0, ready=False), AskIndex(1, ready=True)]
    answer = post(running, "/index", '{"ready": 1}', ())
    assert (answer.status, answer.json()) == (400, {"error": "Invalid value for 'ready': expected a boolean"})
    assert running.ask("GET", "/v2/repository/index").status == 405


def test_the_events_are_the_supervisors(running: InProcessServer) -> None:
    """Those of all models, or of one."""
    events = ({"model": "model", "event": "loaded"}, {"model": "other", "event": "failed"})
    supervisor = PuppetSupervisor(running.gateway, with_admin_key(KEY), events)
    assert running.ask("GET", "/v2/repository/events").json() == list(events)
    assert running.ask("GET", "/v2/repository/models/a%20b/events").json() == list(events)
    assert supervisor.requests == [AskEvents(0), AskEvents(1, "a b")]
    assert post(running, "/events").status == 405


@pytest.mark.parametrize(
    ("path", "body", "question"),
    [
        ("/models/model/load", "", AskLoad(0, "model")),
        ("/models/model/load", '{"parameters": {}}', AskLoad(0, "model")),
        ("/models/a%20b/versions/3/load", "", AskLoad(0, "a b", 3)),
        ("/models/model/unload", "", AskUnload(0, "model")),
        (
            "/models/model/unload",
            '{"parameters": {"unload_dependents": true}}',
            AskUnload(0, "model"),
        ),
        ("/models/model/versions/3/unload", "", AskUnload(0, "model", 3)),
    ],
)
def test_load_and_unload_are_requested_from_the_supervisor(
    running: InProcessServer, supervisor: PuppetSupervisor, path: str, body: str, question: Ask
) -> None:
    """A finished load or unload is answered with an empty 200."""
    answer = post(running, path, body)
    assert (answer.status, answer.body) == (200, b"")
    assert supervisor.requests == [question]


def test_weights_of_labels_are_set(running: InProcessServer, supervisor: PuppetSupervisor) -> None:
    """With the admin key, also where the server looks for models itself; what is malformed is not asked."""
    supervisor.allow(with_admin_key(KEY, polls=True))
    body = '{"weights": {"stable": 90, "next": 10}, "by": "X-User"}'
    assert post(running, "/models/model/canary", body).status == 200
    assert supervisor.requests == [AskShift(0, "model", Canary({"stable": 90, "next": 10}, "x-user"))]
    assert post(running, "/models/model/canary", body, ()).status == 401
    for wrong in (
        "{}",
        '{"weights": {"a": -1}}',
        '{"weights": 1}',
        '{"weights": {}, "by": 3}',
        '{"weights": {}, "x": 1}',
    ):
        answer = post(running, "/models/model/canary", wrong)
        assert (answer.status, answer.json()["error"][:23]) == (400, "failed to shift 'model'")
    assert post(running, "/models/model/canary", '{"weights": {}}').status == 200
    assert supervisor.requests[1:] == [AskShift(1, "model", Canary())]


def test_a_refusal_has_the_code_of_its_error(running: InProcessServer, supervisor: PuppetSupervisor) -> None:
    """The protocol's JSON has no place for it, so a header tells a load that has taken too long from others."""
    supervisor.refusal = Refusal(0, 500, "load_timeout", "too late")
    answer = post(running, "/models/model/load")
    assert (answer.status, answer.json()) == (500, {"error": "too late"})
    assert answer.header("x-stoker-error-code") == "load_timeout"


@pytest.mark.parametrize(
    ("policy", "wanted"),
    [
        ('{"latest": {"num_versions": 2}}', VersionPolicy(newest=2)),
        ('{"latest": {}}', VersionPolicy(newest=1)),
        ('{"all": {}}', VersionPolicy(newest=None)),
        ('{"specific": {"versions": ["7", 3]}}', VersionPolicy(newest=None, named=(3, 7))),
    ],
)
def test_a_load_can_bring_a_version_policy(
    running: InProcessServer, supervisor: PuppetSupervisor, policy: str, wanted: VersionPolicy
) -> None:
    """As Triton's clients give it: a model configuration as JSON within JSON."""
    config = f'{{"name": "model", "version_policy": {policy}}}'
    assert post(running, "/models/model/load", json.dumps({"parameters": {"config": config}})).status == 200
    assert supervisor.requests == [AskLoad(0, "model", policy=wanted)]


@pytest.mark.parametrize(
    ("config", "adjustments"),
    [
        ({"max_batch_size": 16}, Adjustments(max_batch_rows=16)),
        (
            {"dynamic_batching": {"max_queue_delay_microseconds": "1500", "preferred_batch_size": [4]}},
            Adjustments(max_delay_ms=1.5),
        ),
        (
            {"dynamic_batching": {}, "instance_group": [{"count": 3, "kind": "KIND_GPU"}]},
            Adjustments(instances=3),
        ),
        (
            {"instance_group": [{"name": "a", "kind": "KIND_CPU"}]},
            Adjustments(instances=1, device=("cpu",)),
        ),
        (
            {"instance_group": [{"gpus": [1, 0], "kind": "KIND_GPU"}]},
            Adjustments(instances=1, device=("cuda:1", "cuda:0")),
        ),
    ],
)
def test_a_load_can_say_how_the_model_is_batched(
    running: InProcessServer, supervisor: PuppetSupervisor, config: dict[str, Any], adjustments: Adjustments
) -> None:
    """As with Model Analyzer, other settings may be repeated and stay unchanged."""
    known = running.ask("GET", "/v2/models/model/config").json()
    described = {name: known[name] for name in ("name", "platform", "backend", "input", "output")}
    body = json.dumps({"parameters": {"config": json.dumps({**described, **config})}})
    answer = post(running, "/models/model/load", body)
    assert (answer.status, answer.body) == (200, b"")
    assert supervisor.requests == [AskLoad(0, "model", adjustments=adjustments)]


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"backend": "onnxruntime"}, "config cannot change backend, which follows from its files"),
        ({"input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [1]}]}, "config cannot change input"),
        ({"input": 3}, "config cannot change input"),
        ({"optimization": {}}, "config cannot change optimization, only version_policy and max_batch_size"),
        ({"max_batch_size": "many"}, "max_batch_size must be a whole number"),
        ({"max_batch_size": -1}, "max_batch_size must be a whole number"),
        ({"instance_group": [{"count": 999}]}, "instances"),
        ({"instance_group": {"count": [[1]]}}, "count cannot be list"),
        ({"instance_group": [{"kind": "KIND_TPU"}]}, "kind must be KIND_AUTO"),
        ({"dynamic_batching": 3}, "dynamic_batching must be a message"),
        ({"dynamic_batching": {"delay": 3}}, "no field dynamic_batching.delay"),
    ],
)
def test_load_with_an_invalid_configuration_gets_400(
    running: InProcessServer, supervisor: PuppetSupervisor, config: dict[str, Any], reason: str
) -> None:
    """Fields of the model itself, unsupported ones and invalid numbers never reach the supervisor."""
    answer = post(running, "/models/model/load", json.dumps({"parameters": {"config": json.dumps(config)}}))
    assert answer.status == 400
    assert reason in answer.json()["error"]
    assert supervisor.requests == []


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ("[]", 400, "has to be a JSON object"),
        ('{"a', 400, "failed to parse"),
        ('{"parameters": 1}', 400, "'parameters' has to be an object"),
        ('{"parameters": {"file:1/model.onnx": "AAAA"}}', 403, "files cannot be uploaded"),
        ('{"parameters": {"speed": "high"}}', 400, "the parameter 'speed' is not known"),
        ('{"parameters": {"config": {}}}', 400, "'config' has to be a text"),
        ('{"parameters": {"config": "x"}}', 400, "config is not JSON"),
        ('{"parameters": {"config": "[]"}}', 400, "config is not an object"),
        ('{"parameters": {"config": "{\\"backend\\": \\"x\\"}"}}', 400, "cannot change backend"),
        ('{"parameters": {"config": "{\\"name\\": \\"x\\"}"}}', 400, "of another model"),
        ('{"parameters": {"config": "{\\"version_policy\\": {}}"}}', 400, "latest, all or specific"),
        (
            '{"parameters": {"config": "{\\"version_policy\\": {\\"latest\\": {\\"num_versions\\": 0}}}"}}',
            400,
            "must be latest",
        ),
        ("x" * (1 << 20) + "x", 413, "larger than 1 MiB"),
    ],
)
def test_loads_that_are_malformed(
    running: InProcessServer, supervisor: PuppetSupervisor, body: str, status: int, reason: str
) -> None:
    """Nothing reaches the supervisor; the error has the protocol's shape."""
    answer = post(running, "/models/model/load", body)
    assert answer.status == status
    assert reason in answer.json()["error"]
    assert supervisor.requests == []


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/models/model/unload", '{"parameters": {"unload_dependents": 1}}', 400),
        ("/models/model/unload", '{"parameters": {"config": "{}"}}', 400),
        ("/models/model/versions/x/load", "", 404),
        ("/mine/index", "", 501),
        ("/mine/models/model/load", "", 501),
        ("/mine/models/model/unload", "", 501),
        ("/models/model/reload", "", 404),
    ],
)
def test_other_refusals(
    running: InProcessServer, supervisor: PuppetSupervisor, path: str, body: str, status: int
) -> None:
    """Repositories have no names, versions are numbers, and parameters are known."""
    answer = post(running, path, body)
    assert (answer.status, supervisor.requests) == (status, [])
    assert answer.json().keys() == {"error"}


@pytest.mark.parametrize("headers", [[], [bearer("wrong")], [bearer(KEY + "x")], [("Authorization", KEY)]])
def test_only_the_admin_key_opens(
    running: InProcessServer, supervisor: PuppetSupervisor, headers: list[tuple[str, str]]
) -> None:
    """Without it the answer is 401, and says which key is meant."""
    for action in ("load", "unload"):
        answer = post(running, f"/models/model/{action}", headers=headers)
        assert (answer.status, answer.header("www-authenticate")) == (401, "Bearer")
        assert "stoker keys show admin" in answer.json()["error"]
    assert supervisor.requests == []


def test_where_no_key_is_needed(
    running: InProcessServer, supervisor: PuppetSupervisor, tmp_path: Path
) -> None:
    """This machine may, pages of browsers may not; a server that others can reach does it for nobody."""
    supervisor.allow(admin_access(tmp_path, AdminRules(polls=False, needs_key=False, key=None, local=True)))
    assert post(running, "/models/model/load", headers=()).status == 200
    page = post(running, "/models/model/load", headers=[("Origin", "http://localhost")])
    assert (page.status, len(supervisor.requests)) == (403, 1)
    supervisor.allow(admin_access(tmp_path, AdminRules(polls=False, needs_key=False, key=None, local=False)))
    answer = post(running, "/models/model/load", headers=())
    assert (answer.status, len(supervisor.requests)) == (403, 1)
    assert "STOKER_ADMIN_KEY" in answer.json()["error"]


def test_the_stored_key_can_be_replaced(
    running: InProcessServer, supervisor: PuppetSupervisor, tmp_path: Path
) -> None:
    """Frontends follow it as they follow the keys of services; without one nobody may."""
    supervisor.allow(admin_access(tmp_path, AdminRules(polls=False, needs_key=True, key=None, local=True)))
    assert post(running, "/models/model/load").status == 403
    keyring = AdminKey(tmp_path)
    first = keyring.ensure().primary
    supervisor.allow(admin_access(tmp_path, AdminRules(polls=False, needs_key=True, key=None, local=False)))
    assert post(running, "/models/model/load", headers=[bearer(first)]).status == 200
    second = keyring.replace()
    assert [post(running, "/models/model/load", headers=[bearer(key)]).status for key in (first, second)] == [
        401,
        200,
    ]
    supervisor.allow(admin_access(tmp_path, AdminRules(polls=False, needs_key=True, key=KEY, local=True)))
    assert post(running, "/models/model/load").status == 200


def test_a_server_that_polls_refuses_loads(running: InProcessServer, supervisor: PuppetSupervisor) -> None:
    """The text is Triton's."""
    supervisor.allow(AdminAccess(polls=True))
    answer = post(running, "/models/model/load")
    error = "explicit model load / unload is not allowed if polling is enabled"
    assert (answer.status, answer.json()) == (503, {"error": error})


def test_refusal_of_the_supervisor_reaches_the_caller(
    running: InProcessServer, supervisor: PuppetSupervisor
) -> None:
    """The caller gets the supervisor's status and text."""
    supervisor.refusal = Refusal(0, 500, "load_failed", "no model")
    answer = post(running, "/models/model/load")
    assert (answer.status, answer.json()) == (500, {"error": "no model"})


def test_statistics_have_their_paths(running: InProcessServer) -> None:
    """Of all models, of one, of one version; names that are not there are 404."""
    assert running.ask(body=b"1").status == 200
    for path in ("/v2/models/stats", "/v2/models/model/stats", "/v2/models/model/versions/1/stats"):
        (found,) = running.ask("GET", path).json()["model_stats"]
        assert (found["name"], found["version"]) == ("model", "1")
    for path in ("/v2/models/x/stats", "/v2/models/model/versions/2/stats"):
        assert running.ask("GET", path).status == 404
    assert running.ask("POST", "/v2/models/stats").status == 405
