"""The methods of gRPC beside inference: health, metadata, statistics and the model repository."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tests.patience import PATIENCE_S
from tests.puppet_supervisor import PuppetSupervisor, with_admin_key
from tests.unit.gateway.grpc.stage import ADMIN, ADMIN_KEY, BEARER, refused, staged

from stoker.control.frontend_messages import AskIndex, AskLoad, AskUnload, Refusal
from stoker.gateway.gateway import Gateway
from stoker.gateway.grpc.messages import METHODS, SERVICE
from stoker.gateway.served_models import ServedModel
from stoker.settings.versions import VersionPolicy

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("late_grpc_events")]


async def test_health_needs_no_key_and_metadata_need_one() -> None:
    """As over HTTP, probes have no keys, and a model's inputs are shown to its callers only."""
    async with staged() as stage:
        assert (await stage.ask("ServerLive")).live
        assert not (await stage.ask("ServerReady")).ready
        assert (await stage.ask("ModelReady", name="digits")).ready
        assert not (await stage.ask("ModelReady", name="letters", version="3")).ready
        for name, fields in (
            ("ServerMetadata", {}),
            ("ModelMetadata", {"name": "digits"}),
            ("ModelStatistics", {}),
            ("RepositoryIndex", {}),
        ):
            error = await refused(stage.ask(name, **fields))
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED
            assert "metadata 'authorization: Bearer" in error.details()
        assert (await stage.ask("ServerMetadata", metadata=BEARER)).name == "stoker"
        digits = await stage.ask("ModelMetadata", name="digits", version="3", metadata=BEARER)
        assert (digits.name, list(digits.versions)) == ("digits", ["3"])
        assert [
            (info.name, info.datatype, list(info.shape)) for info in (*digits.inputs, *digits.outputs)
        ] == [
            ("x", "FP32", [-1, 2]),
            ("y", "FP32", [-1, 2]),
        ]
        script = await stage.ask("ModelMetadata", name="script", metadata=BEARER)
        assert not script.inputs


@pytest.mark.parametrize("name", ["ModelReady", "ModelMetadata"])
@pytest.mark.parametrize("model", [{"name": "none"}, {"name": "digits", "version": "4"}])
async def test_unknown_models_and_versions_are_not_found(name: str, model: dict[str, str]) -> None:
    """In the words of the protocol."""
    async with staged() as stage:
        error = await refused(stage.ask(name, **model))
        assert error.code() is grpc.StatusCode.NOT_FOUND
        assert error.details().startswith(f"Request for unknown model: '{model['name']}'")


async def test_standard_health_service_has_the_server_and_each_model() -> None:
    """It gives the present state, once and to watchers; an unknown name is not found."""
    async with staged() as stage:
        health = health_pb2_grpc.HealthStub(stage.channel)
        serving = health_pb2.HealthCheckResponse.ServingStatus.Name

        async def check(name: str) -> str:
            answer = await health.Check(health_pb2.HealthCheckRequest(service=name), timeout=PATIENCE_S)
            return serving(answer.status)

        names = ("", SERVICE, "digits", "letters")
        assert [await check(name) for name in names] == [
            "NOT_SERVING",
            "NOT_SERVING",
            "SERVING",
            "NOT_SERVING",
        ]
        stage.gateway.directory.services["letters"].replicas.exchanges = [object()]  # type: ignore[list-item]
        assert [await check(name) for name in names] == ["SERVING"] * 4
        unknown = await refused(health.Check(health_pb2.HealthCheckRequest(service="none")))
        assert unknown.code() is grpc.StatusCode.NOT_FOUND
        watch = health.Watch(health_pb2.HealthCheckRequest(service="digits"), timeout=PATIENCE_S)
        assert serving((await watch.read()).status) == "SERVING"
        stage.gateway.readiness.start_draining()
        assert serving((await watch.read()).status) == "NOT_SERVING"
        assert await check("") == "NOT_SERVING"
        nobody = health.Watch(health_pb2.HealthCheckRequest(service="none"), timeout=PATIENCE_S)
        assert serving((await nobody.read()).status) == "SERVICE_UNKNOWN"


async def test_health_watch_is_notified_by_events_without_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Watchers of health get changes by events, without polling; the end of the server ends the watch."""
    loop, delays_s = asyncio.get_running_loop(), []
    call_at = loop.call_at

    def noted(when: float, *arguments: Any, **options: Any) -> asyncio.TimerHandle:
        delays_s.append(when - loop.time())
        return call_at(when, *arguments, **options)

    async with staged() as stage:
        monkeypatch.setattr(loop, "call_at", noted)
        health = health_pb2_grpc.HealthStub(stage.channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(service="letters"))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        # The watchers wait by now: this takes several turns of the loop.
        await health.Check(health_pb2.HealthCheckRequest(service="digits"))
        assert not delays_s
        monkeypatch.undo()
        stage.gateway.directory.services["letters"].replicas.exchanges = [object()]  # type: ignore[list-item]
        stage.gateway.readiness.notify()
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        stage.gateway.route("letters", ServedModel({}, None, {}))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        stopping = asyncio.ensure_future(stage.server.stop(PATIENCE_S))
        assert (await refused(watch.read())).code() is grpc.StatusCode.UNAVAILABLE
        assert await stopping == 0


async def test_reflection_describes_every_service() -> None:
    """A client without the `.proto` learns the methods and messages from the server."""
    async with staged() as stage:

        def learn() -> tuple[set[str], set[str]]:
            with grpc.insecure_channel(f"127.0.0.1:{stage.server.port}") as channel:
                database = ProtoReflectionDescriptorDatabase(channel)
                pool = descriptor_pool.DescriptorPool(database)
                names = set(database.get_services())
                methods = {method.name for method in pool.FindServiceByName(SERVICE).methods}
                for name in names:
                    pool.FindServiceByName(name)
                return names, methods

        names, methods = await asyncio.to_thread(learn)
        assert names == {
            SERVICE,
            "grpc.health.v1.Health",
            "grpc.reflection.v1alpha.ServerReflection",
            "tensorflow.serving.ModelService",
            "tensorflow.serving.PredictionService",
            "org.pytorch.serve.grpc.inference.InferenceAPIsService",
            "org.pytorch.serve.grpc.management.ManagementAPIsService",
        }
        assert methods == set(METHODS)


@pytest.mark.parametrize(
    ("name", "extension"),
    [
        ("SystemSharedMemoryStatus", "system_shared_memory"),
        ("TraceSetting", "trace"),
        ("LogSettings", "logging"),
    ],
)
async def test_method_of_an_unsupported_extension_is_unimplemented(name: str, extension: str) -> None:
    """Methods of other extensions are unimplemented, by name."""
    async with staged() as stage:
        error = await refused(stage.channel.unary_unary(f"/{SERVICE}/{name}")(b"", timeout=PATIENCE_S))
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED
        assert error.details() == f"{extension} extension is not supported"


async def test_nothing_can_be_registered_of_cuda() -> None:
    """Where shared memory is off: there is nothing, which can be let go; the refusal is that of HTTP."""
    async with staged() as stage:
        assert not (await stage.ask("CudaSharedMemoryStatus", metadata=BEARER)).regions
        await stage.ask("CudaSharedMemoryUnregister", metadata=BEARER)
        error = await refused(stage.ask("CudaSharedMemoryRegister", name="a", metadata=BEARER))
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED
        assert error.details() == "cuda_shared_memory extension is not supported"
        error = await refused(stage.ask("CudaSharedMemoryStatus"))
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_unknown_methods_and_services_are_unimplemented() -> None:
    """Also such as nobody has heard of."""
    async with staged() as stage:
        for path in (f"/{SERVICE}/Guess", "/other.Service/ModelInfer"):
            error = await refused(stage.channel.unary_unary(path)(b"", timeout=PATIENCE_S))
            assert error.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_statistics_are_those_of_http() -> None:
    """Of all models, of one, and of one version; an unknown one is not found."""
    async with staged() as stage:
        stage.digits.metrics.note_scored(3, 10, 20)
        stage.digits.metrics.flush()
        all_models = await stage.ask("ModelStatistics", metadata=BEARER)
        assert [(entry.name, entry.version) for entry in all_models.model_stats] == [
            ("digits", "3"),
            ("letters", "3"),
            ("script", "3"),
        ]
        answering = stage.ask("ModelStatistics", name="digits", version="3", metadata=BEARER)
        (digits,) = (await answering).model_stats
        assert digits == all_models.model_stats[0]
        assert digits.inference_count == 3
        assert digits.inference_stats.success.count == 1
        for wrong in ({"name": "none"}, {"name": "digits", "version": "4"}):
            error = await refused(stage.ask("ModelStatistics", **wrong, metadata=BEARER))
            assert error.code() is grpc.StatusCode.NOT_FOUND


def supervised(gateway: Gateway) -> PuppetSupervisor:
    """A supervisor of two models."""
    entries = ({"name": "digits", "version": "3", "state": "READY"}, {"name": "other"})
    return PuppetSupervisor(gateway, with_admin_key(ADMIN_KEY), entries)


async def test_the_index_is_the_supervisors() -> None:
    """A key of a model or the admin key is enough."""
    async with staged() as stage:
        supervisor = supervised(stage.gateway)
        first, other = (await stage.ask("RepositoryIndex", ready=True, metadata=BEARER)).models
        assert (first.name, first.version, first.state) == ("digits", "3", "READY")
        assert (other.name, other.version) == ("other", "")
        await stage.ask("RepositoryIndex", metadata=ADMIN)
        assert supervisor.requests == [AskIndex(0, ready=True), AskIndex(1, ready=False)]


async def test_models_are_loaded_and_unloaded_with_the_admin_key() -> None:
    """With the parameters that HTTP has."""
    async with staged() as stage:
        supervisor = supervised(stage.gateway)
        config = {"config": {"string_param": '{"version_policy": {"all": {}}}'}}
        await stage.ask("RepositoryModelLoad", model_name="digits", metadata=ADMIN)
        await stage.ask("RepositoryModelLoad", model_name="digits", parameters=config, metadata=ADMIN)
        flag = {"unload_dependents": {"bool_param": True}}
        await stage.ask("RepositoryModelUnload", model_name="digits", parameters=flag, metadata=ADMIN)
        assert supervisor.requests == [
            AskLoad(0, "digits"),
            AskLoad(1, "digits", policy=VersionPolicy(newest=None)),
            AskUnload(2, "digits"),
        ]


@pytest.mark.parametrize("name", ["RepositoryModelLoad", "RepositoryModelUnload"])
@pytest.mark.parametrize(
    ("fields", "metadata", "code"),
    [
        ({}, (), "UNAUTHENTICATED"),
        ({}, BEARER, "UNAUTHENTICATED"),
        ({"repository_name": "r"}, ADMIN, "UNIMPLEMENTED"),
        ({"parameters": {"other": {"bool_param": True}}}, ADMIN, "INVALID_ARGUMENT"),
        ({"parameters": {"config": {"int64_param": 1}}}, ADMIN, "INVALID_ARGUMENT"),
        ({"parameters": {"config": {}}}, ADMIN, "INVALID_ARGUMENT"),
    ],
)
async def test_other_loads_are_refused(name: str, fields: dict[str, Any], metadata: Any, code: str) -> None:
    """Nothing of them reaches the supervisor."""
    async with staged() as stage:
        supervisor = supervised(stage.gateway)
        error = await refused(stage.ask(name, model_name="digits", metadata=metadata, **fields))
        assert error.code().name == code
        assert not supervisor.requests


async def test_a_refusal_names_the_metadata_of_the_admin_key() -> None:
    """Callers of gRPC send no headers."""
    async with staged() as stage:
        supervised(stage.gateway)
        error = await refused(stage.ask("RepositoryModelLoad", model_name="digits"))
        assert error.details().endswith(
            "needs the admin key ('stoker keys show admin'): send the metadata 'authorization: Bearer <key>'."
        )


async def test_a_load_that_takes_too_long_has_its_own_code() -> None:
    """Its status is that of every load that fails."""
    async with staged() as stage:
        supervisor = supervised(stage.gateway)
        supervisor.refusal = Refusal(0, 500, "load_timeout", "late")
        error = await refused(stage.ask("RepositoryModelLoad", model_name="digits", metadata=ADMIN))
        assert (error.code(), error.details()) == (grpc.StatusCode.INTERNAL, "late")
        assert dict(error.trailing_metadata())["error-code"] == "load_timeout"


async def test_files_are_not_uploaded() -> None:
    """They are forbidden, as over HTTP."""
    async with staged() as stage:
        supervised(stage.gateway)
        files = {"file:1/model.onnx": {"bytes_param": b"x"}}
        error = await refused(
            stage.ask("RepositoryModelLoad", model_name="m", parameters=files, metadata=ADMIN)
        )
        assert error.code() is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize(
    ("status", "code"), [(404, "NOT_FOUND"), (409, "ABORTED"), (500, "INTERNAL"), (503, "UNAVAILABLE")]
)
async def test_refusal_of_the_supervisor_becomes_its_grpc_status(status: int, code: str) -> None:
    """The HTTP status of a supervisor's refusal is translated to the status of gRPC."""
    async with staged() as stage:
        supervisor = supervised(stage.gateway)
        supervisor.refusal = Refusal(0, status, "c", "no")
        error = await refused(stage.ask("RepositoryModelLoad", model_name="m", metadata=ADMIN))
        assert (error.code().name, error.details()) == (code, "no")


async def test_without_a_supervisor_there_is_no_repository() -> None:
    """As over HTTP."""
    async with staged() as stage:
        error = await refused(stage.ask("RepositoryIndex", metadata=BEARER))
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED
        assert error.details() == "model_repository extension is not supported"
