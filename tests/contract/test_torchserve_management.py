"""TorchServe's management API over HTTP: requests to the supervisor, refusals, ports."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.contract.in_process import InProcessServer
from tests.http.raw_http import Answer, bearer
from tests.puppet_supervisor import PuppetSupervisor, with_admin_key
from tests.puppets import PuppetRuntime

from stoker.control.frontend_messages import Ask, AskDefault, AskLoad, AskUnload, Refusal
from stoker.deployment import Deployment
from stoker.gateway.served_models import ServedModel, ServedVersion
from stoker.metrics.layout import FIRST_DEVICE_PAGE
from stoker.settings.choices import Adjustments
from stoker.settings.versions import VersionPolicy, VersionStatus

KEY = "the-admin-key-of-the-tests"
CHANGED = Adjustments(max_batch_rows=4)


@pytest.fixture(scope="module")
def running() -> Iterator[InProcessServer]:
    """Two models, of which one has a batch size of a load request and an unloaded version."""
    with InProcessServer({"resnet": PuppetRuntime(), "bert": PuppetRuntime()}) as server:
        gateway = server.gateway
        server.set(management_port=server.port)
        files = Deployment("resnet", 1, "onnx", Path("store/resnet.onnx"), Path("store"), 4, 1 << 20)
        service = gateway.directory.services["resnet"]
        deployment = replace(files, max_delay_ms=2.0, devices=("cpu", "cuda:0"), adjustments=CHANGED)
        service.facts = msgspec.structs.replace(service.facts, framework="onnx", deployment=deployment)
        known = gateway.directory.models["resnet"]
        ended = ServedVersion(VersionStatus(9, "END", "unloaded"))
        gateway.directory.models["resnet"] = ServedModel({**known.versions, "2": ended}, known.default)
        yield server


@pytest.fixture
def supervisor(running: InProcessServer) -> PuppetSupervisor:
    """A supervisor that does all that is requested."""
    return PuppetSupervisor(running.gateway, with_admin_key(KEY))


def ask(server: InProcessServer, method: str, path: str, key: str = KEY) -> Answer:
    """Ask with the admin key."""
    return server.ask(method, path, [bearer(key)] if key else [])


@pytest.mark.parametrize(
    ("method", "path", "question", "status"),
    [
        (
            "POST",
            "/models?url=resnet.mar",
            AskLoad(0, "resnet"),
            'Model "resnet" Version: 1 registered with 2 initial workers',
        ),
        (
            "POST",
            "/models?url=resnet.mar&model_name=resnet&initial_workers=2&batch_size=8&max_batch_delay=50&synchronous=true",
            AskLoad(0, "resnet", adjustments=Adjustments(8, 50, replicas=2)),
            'Model "resnet" Version: 1 registered with 2 initial workers',
        ),
        (
            "PUT",
            "/models/resnet?min_worker=3&synchronous=false",
            AskLoad(0, "resnet", policy=VersionPolicy.of((1,)), adjustments=replace(CHANGED, replicas=3)),
            "Workers scaled to 3 for model: resnet",
        ),
        (
            "PUT",
            "/models/resnet/1.0?min_worker=3&max_worker=3",
            AskLoad(0, "resnet", policy=VersionPolicy.of((1,)), adjustments=replace(CHANGED, replicas=3)),
            "Workers scaled to 3 for model: resnet, version: 1.0",
        ),
        (
            "PUT",
            "/models/resnet/1.0/set-default",
            AskDefault(0, "resnet", 1),
            'Default version successfully updated for model "resnet" to "1"',
        ),
        ("DELETE", "/models/resnet", AskUnload(0, "resnet"), 'Model "resnet" unregistered'),
        ("DELETE", "/models/resnet/1.0", AskUnload(0, "resnet", 1), 'Model "resnet" unregistered'),
    ],
)
def test_each_change_is_one_request_to_the_supervisor(
    running: InProcessServer, supervisor: PuppetSupervisor, method: str, path: str, question: Ask, status: str
) -> None:
    """Each change is answered in TorchServe's words; scaling keeps the batch size."""
    answer = ask(running, method, path)
    assert (answer.status, answer.json()) == (200, {"status": status})
    assert supervisor.requests == [question]


@pytest.mark.parametrize(
    ("method", "path", "status", "kind", "part"),
    [
        ("POST", "/models", 400, "BadRequestException", '"url" is required'),
        ("POST", "/models?url=https://example.org/a.mar", 403, "InvalidKeyException", "not downloaded"),
        ("POST", "/models?url=../a.mar", 403, "InvalidKeyException", "name of a file"),
        ("POST", "/models?url=a.mar&model_name=b", 400, "BadRequestException", "has the name of its file, a"),
        ("POST", "/models?url=a.mar&handler=x", 400, "BadRequestException", "the archive names its handler"),
        ("POST", "/models?url=a.mar&initial_workers=0", 400, "BadRequestException", "from 1 to 64"),
        ("POST", "/models?url=a.mar&batch_size=many", 400, "BadRequestException", "not 'many'"),
        ("POST", "/models?url=a.mar&synchronous=maybe", 400, "BadRequestException", "true or false"),
        ("POST", "/models?url=a.mar&colour=red", 400, "BadRequestException", "'colour' is not known"),
        ("PUT", "/models/resnet?min_worker=1&max_worker=3", 400, "BadRequestException", "stoker autoscale"),
        ("PUT", "/models/resnet?min_worker=1&timeout=0", 400, "BadRequestException", "always answered"),
        ("PUT", "/models/nobody?min_worker=1", 404, "ModelNotFoundException", "Model not found: nobody"),
        ("PUT", "/models/resnet/3/set-default", 404, "ModelVersionNotFoundException", "does not exist"),
        ("DELETE", "/models/nobody", 404, "ModelNotFoundException", "Model not found: nobody"),
        ("DELETE", "/models/resnet/3", 404, "ModelVersionNotFoundException", "does not exist"),
        ("GET", "/models/resnet/3", 404, "ModelVersionNotFoundException", "does not exist"),
        ("GET", "/models?limit=0", 400, "BadRequestException", "from 1 to 1000"),
        ("GET", "/models/resnet?customized=true", 400, "BadRequestException", "handlers describe nothing"),
    ],
)
def test_refused(
    running: InProcessServer,
    supervisor: PuppetSupervisor,
    method: str,
    path: str,
    status: int,
    kind: str,
    part: str,
) -> None:
    """Settings that cannot be honoured are refused by name; the supervisor hears nothing of them."""
    answer = ask(running, method, path)
    assert (answer.status, answer.json()["code"], answer.json()["type"]) == (status, status, kind)
    assert part in answer.json()["message"]
    assert supervisor.requests == []


def test_one_version_of_several_is_not_scaled(running: InProcessServer, supervisor: PuppetSupervisor) -> None:
    """All have as many workers."""
    known = running.gateway.directory.models["resnet"]
    second = ServedVersion(VersionStatus(9, "AVAILABLE"), running.gateway.directory.services["bert"])
    running.gateway.directory.models["resnet"] = ServedModel({**known.versions, "2": second}, known.default)
    try:
        answer = ask(running, "PUT", "/models/resnet/1?min_worker=2")
        assert (answer.status, supervisor.requests) == (400, [])
        assert "without a version (served: 1, 2)" in answer.json()["message"]
        ask(running, "PUT", "/models/resnet?min_worker=2")
        assert supervisor.requests == [
            AskLoad(0, "resnet", policy=VersionPolicy.of((1, 2)), adjustments=replace(CHANGED, replicas=2))
        ]
    finally:
        running.gateway.directory.models["resnet"] = known


def test_the_admin_key_is_needed(running: InProcessServer, supervisor: PuppetSupervisor) -> None:
    """For every change; and none is made where the server looks for models itself."""
    changes = (
        ("POST", "/models?url=resnet.mar"),
        ("PUT", "/models/resnet?min_worker=2"),
        ("PUT", "/models/resnet/1/set-default"),
        ("DELETE", "/models/resnet"),
    )
    for method, path in changes:
        for key in ("", KEY + "-wrong"):
            answer = ask(running, method, path, key)
            assert (answer.status, answer.json()["type"]) == (401, "InvalidKeyException")
    supervisor.allow(with_admin_key(KEY, polls=True))
    for method, path in changes:
        answer = ask(running, method, path)
        assert (answer.status, answer.json()["type"]) == (503, "ServiceUnavailableException")
    assert supervisor.requests == []


def test_refusal_of_the_supervisor_is_torchserve_s_error(
    running: InProcessServer, supervisor: PuppetSupervisor
) -> None:
    """The error has the supervisor's status and sentence, and Stoker's code."""
    supervisor.refusal = Refusal(0, 500, "load_failed", "failed to load 'resnet', version 1: no memory")
    answer = ask(running, "POST", "/models?url=resnet.mar")
    assert answer.json() == {
        "code": 500,
        "type": "InternalServerException",
        "message": "failed to load 'resnet', version 1: no memory",
    }
    assert answer.header("x-stoker-error-code") == "load_failed"


def test_models_are_listed_by_page(running: InProcessServer, supervisor: PuppetSupervisor) -> None:
    """By name, which registers each again as its address."""
    del supervisor
    resnet = {"modelName": "resnet", "modelUrl": "resnet"}
    bert = {"modelName": "bert", "modelUrl": "bert"}
    assert ask(running, "GET", "/models").json() == {"models": [bert, resnet]}
    assert ask(running, "GET", "/models?limit=1").json() == {"models": [bert], "nextPageToken": "1"}
    assert ask(running, "GET", "/models?limit=1&next_page_token=1").json() == {"models": [resnet]}


def test_a_model_is_described(running: InProcessServer, supervisor: PuppetSupervisor) -> None:
    """The default version, one of a number, or all that are served; a replica that is gone is not ready."""
    del supervisor
    expected: dict[str, Any] = {
        "modelName": "resnet",
        "modelVersion": "1",
        "modelUrl": "resnet",
        "runtime": "onnx",
        "minWorkers": 2,
        "maxWorkers": 2,
        "batchSize": 4,
        "maxBatchDelay": 2.0,
        "loadedAtStartup": False,
        "workers": [
            {"id": "0", "status": "READY", "gpu": False},
            {"id": "1", "status": "UNLOADED", "gpu": False},
        ],
        "jobQueueStatus": {"pendingRequests": 0},
    }
    for path in ("resnet", "resnet/1", "resnet/1.0", "resnet/all"):
        assert ask(running, "GET", f"/models/{path}").json() == [expected]
    page = running.memory.page(FIRST_DEVICE_PAGE)
    page.set_device(1)
    page.model(running.gateway.directory.models["resnet"].versions["1"].status.slot).count_busy(
        1_000_000, {0: 1}
    )
    (described,) = ask(running, "GET", "/models/resnet").json()
    assert all(worker["gpu"] for worker in described["workers"]), "batches ran on one"


def test_only_the_management_port_has_these_paths(
    running: InProcessServer, supervisor: PuppetSupervisor
) -> None:
    """On other ports they are unknown, with any key."""
    own = running.gateway.settings.management_port
    for port in (0, own - 1):
        running.set(management_port=port)
        try:
            for method, path in (
                ("GET", "/models"),
                ("POST", "/models?url=a.mar"),
                ("DELETE", "/models/resnet"),
            ):
                assert ask(running, method, path).status == 404
        finally:
            running.set(management_port=own)
    assert supervisor.requests == []
    assert ask(running, "PATCH", "/models").status == 405
