"""The gRPC server of a frontend in this process, with a puppet instead of the device."""

from __future__ import annotations

import asyncio
import gc
import socket
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tests.patience import PATIENCE_S
from tests.puppet_supervisor import PuppetSupervisor, with_admin_key
from tests.puppets import HandClock, metric_memory, puppet_service

from stoker import errors
from stoker.control.asks import AskIndex, AskLoad, AskUnload, Refusal
from stoker.errors import DeadlineExceeded, InvalidInput, ModelFailed, Overloaded, StokerError
from stoker.errors import Refusal as ToldRefusal
from stoker.gateway.gateway import Gateway
from stoker.gateway.grpc import infer, server, services
from stoker.gateway.grpc.messages import METHODS, SERVICE, ModelInferRequest, message
from stoker.gateway.grpc.metadata import status_of
from stoker.gateway.grpc.server import GrpcServer
from stoker.gateway.http.body_budget import BodyBudget
from stoker.gateway.listeners.tls import TlsListener
from stoker.gateway.rows.urgency import Quotas
from stoker.gateway.scoring.service import Service
from stoker.gateway.served_models import ServedModel, ServedVersion
from stoker.keys.callers import CallerBook, KnownCallers
from stoker.keys.credentials import Access
from stoker.keys.keyring import Keyring, Keys
from stoker.keys.verifier import KeyVerifier
from stoker.settings.names import VersionPolicy, VersionStatus
from stoker.system.certificates import TlsFiles
from stoker.takeover.traffic_split import Split
from stoker.tensors import ScriptForm, Signature, TensorSpec

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("late_grpc_events")]

KEY, OTHER_KEY = "a-key-of-the-tests-00000001", "a-key-of-the-tests-00000002"
BEARER = (("authorization", f"Bearer {KEY}"),)
ADMIN_KEY = "the-admin-key-of-the-tests"
ADMIN = (("authorization", f"Bearer {ADMIN_KEY}"),)
ROWS = Signature((TensorSpec("x", "float32", (2,)),), (TensorSpec("y", "float32", (2,)),))
BODIES = Signature(
    (TensorSpec("raw_data", "uint8", (64,), variable=True),),
    (TensorSpec("result", "uint8", (64,), variable=True),),
    takes="body",
    script=ScriptForm(),
)
TLS = Path(__file__).parents[3] / "tls"
TLS_FILES = TlsFiles(TLS / "localhost.crt", TLS / "localhost.key")
SETTINGS, ACKNOWLEDGED = b"\0\0\0\4\0\0\0\0\0", b"\0\0\0\4\1\0\0\0\0"
"""Frames of HTTP/2."""
"""How long a test waits for what must come."""


@dataclass
class PuppetInfer:
    """An exchange that doubles numbers; fails or waits if the test says so.

    Attributes:
        error: What requests fail with, if anything: an error of the device, or a fault of the server.
        gate: What it waits for, if anything.
        calls: What it was asked: service, ids, and how long the caller waits if that is not the service's timeout.
        begun: How many requests have begun, for the test to wait for.
        given_up: How many were cancelled.
        watch: Called with the rows of each request.
    """

    error: Exception | None = None
    gate: asyncio.Event | None = None
    calls: list[tuple[str, bytes, int | None]] = field(default_factory=list)
    begun: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    under_way: int = 0
    most_under_way: int = 0
    given_up: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    watch: Callable[[Any], object] = lambda _: None
    signature: Signature = ROWS
    lost: bool = False
    idle: bool = True
    leased_rows: int = 0
    admission: None = None
    tasks: set[asyncio.Future[None]] = field(default_factory=set)

    def ring(self) -> None:
        """There is no device to be told."""

    def refusal(self, _: Any) -> None:
        """Refuse nobody before their request is read."""

    def missed(self, *_: int) -> DeadlineExceeded:
        """Nothing is known of when to come back."""
        return DeadlineExceeded()

    def submit(self, ticket: Any, rows: list[np.ndarray]) -> None:
        """Take a request."""
        service, wait_ns = ticket.service, ticket.deadline_ns - ticket.received_ns
        told_ns = None if wait_ns == service.timeout_ns else wait_ns
        self.calls.append((f"{service.name}:{service.version}", ticket.ids.request_id, told_ns))
        self.watch(rows)
        ticket.claim(len(rows[0]))
        if self.error is not None and not isinstance(self.error, ModelFailed):
            # A copy: what an error was raised with lives as long as it does.
            raise copy(self.error)
        ticket.exchange, ticket.rows = self, len(rows[0])
        ticket.enqueued_ns = ticket.started_ns = ticket.finished_ns = ticket.received_ns
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        self.begun.release()
        task = asyncio.ensure_future(self._finish(ticket, [rows[0] * 2]))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def submit_decoded(self, ticket: Any, body: Any, decode: Any) -> None:
        """Take a request whose row could be written in place."""
        self.submit(ticket, decode(body, None))

    async def _finish(self, ticket: Any, outputs: list[np.ndarray]) -> None:
        if self.gate is not None:
            await self.gate.wait()
        if ticket.is_open:
            self.under_way -= 1
            ticket.error, ticket.sliced = self.error, SimpleNamespace(arrays=outputs)
            ticket.settle()

    def cancel(self, _: Any) -> None:
        """The caller has gone."""
        self.under_way -= 1
        self.given_up.release()

    async def has_begun(self, requests: int = 1) -> None:
        """Wait until so many more requests have begun."""
        for _ in range(requests):
            await asyncio.wait_for(self.begun.acquire(), PATIENCE_S)


@dataclass
class Stage:
    """A server and a channel to it."""

    gateway: Gateway
    infer: PuppetInfer
    server: GrpcServer
    channel: Any

    def method(self, name: str) -> Any:
        """The client's side of a method."""
        descriptor = METHODS[name]
        kind = (
            self.channel.stream_stream
            if descriptor.client_streaming and descriptor.server_streaming
            else self.channel.unary_unary
        )
        return kind(
            f"/{SERVICE}/{name}",
            message(descriptor.input_type.name).SerializeToString,
            message(descriptor.output_type.name).FromString,
        )

    async def ask(self, method: str, /, *, metadata: Any = (), **fields: Any) -> Any:
        """Call a unary method."""
        request = message(METHODS[method].input_type.name)(**fields)
        return await self.method(method)(request, metadata=metadata, timeout=PATIENCE_S)

    def infers(
        self, *numbers: float, metadata: Any = BEARER, timeout: float = PATIENCE_S, **fields: Any
    ) -> Any:
        """Begin to infer one row of two numbers."""
        return self.method("ModelInfer")(rows(*numbers, **fields), metadata=metadata, timeout=timeout)

    @property
    def digits(self) -> Service:
        return self.gateway.services["digits"]


def rows(*numbers: float, **fields: Any) -> Any:
    """A raw request of one row."""
    request = ModelInferRequest(**{"model_name": "digits", **fields})
    request.inputs.add(name="x", datatype="FP32", shape=[1, 2])
    request.raw_input_contents.append(np.array(numbers or (1, 2), "<f4").tobytes())
    return request


def numbers_of(answer: Any) -> list[float]:
    return np.frombuffer(answer.raw_output_contents[0], "<f4").tolist()


@asynccontextmanager
async def staged(**arguments: Any) -> AsyncIterator[Stage]:
    """A server of three models, two of which are ready, all with keys."""
    memory = metric_memory()
    keys = {"digits": KEY, "letters": OTHER_KEY, "script": KEY}
    services = {
        name: puppet_service(
            name,
            memory,
            slot=slot,
            version="3",
            access=Access(KeyVerifier(Path("never-read"), name, Keys(key, key))),
            timeout_ms=60_000,
            max_body_bytes=1 << 20,
        )
        for slot, (name, key) in enumerate(keys.items())
    }
    infer = PuppetInfer()
    for name, signature in (("digits", ROWS), ("script", BODIES)):
        services[name].signature = signature
        services[name].exchanges = [infer]  # type: ignore[list-item]
    gateway = Gateway(services, memory)
    server = GrpcServer(
        gateway,
        arguments.pop("address", "127.0.0.1:0"),
        max_message_bytes=arguments.pop("max_message_bytes", 1 << 16),
        **arguments,
    )
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield Stage(gateway, infer, server, channel)
    await server.stop(0)


async def refused(call: Any) -> grpc.aio.AioRpcError:
    """The error that a call ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value


# --- connections ---


async def test_callers_of_old_connections_connect_anew_and_lose_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is under way is answered on the old connection, what comes next on another one."""
    monkeypatch.setattr(server, "_SWEEP_S", 0.02)
    async with staged(connection_age_s=0.05) as stage:
        stage.infer.gate = asyncio.Event()
        held = asyncio.ensure_future(stage.infers(1, 2))
        await stage.infer.has_begun()
        (first,) = stage.server.connections
        await until(lambda: first.http.settled, "its caller has been told")
        stage.infer.gate.set()
        assert numbers_of(await held) == [2, 4]
        assert numbers_of(await stage.infers(3, 4)) == [6, 8]
        await until(lambda: first not in stage.server.connections, "the old one is closed")


# --- health and metadata ---


async def test_health_needs_no_key_and_metadata_need_one() -> None:
    """As over HTTP: probes have no keys, and what a model takes is its callers' business."""
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


async def test_the_standard_health_service_tells_of_the_server_and_of_each_model() -> None:
    """It says what is true now, at once and to those who watch; an unknown name is not found."""
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
        stage.gateway.services["letters"].exchanges = [object()]  # type: ignore[list-item]
        assert [await check(name) for name in names] == ["SERVING"] * 4
        unknown = await refused(health.Check(health_pb2.HealthCheckRequest(service="none")))
        assert unknown.code() is grpc.StatusCode.NOT_FOUND
        watch = health.Watch(health_pb2.HealthCheckRequest(service="digits"), timeout=PATIENCE_S)
        assert serving((await watch.read()).status) == "SERVING"
        stage.gateway.start_draining()
        assert serving((await watch.read()).status) == "NOT_SERVING"
        assert await check("") == "NOT_SERVING"
        nobody = health.Watch(health_pb2.HealthCheckRequest(service="none"), timeout=PATIENCE_S)
        assert serving((await nobody.read()).status) == "SERVICE_UNKNOWN"


async def test_who_watches_health_is_told_by_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing looks again and again meanwhile; the end of the server ends the watching."""
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
        # Whoever watches waits by now: this takes several turns of the loop.
        await health.Check(health_pb2.HealthCheckRequest(service="digits"))
        assert not delays_s
        monkeypatch.undo()
        stage.gateway.services["letters"].exchanges = [object()]  # type: ignore[list-item]
        stage.gateway.notify_readiness()
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
async def test_what_is_not_spoken_is_said_so(name: str, extension: str) -> None:
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


# --- statistics and repository ---


async def test_statistics_are_those_of_http() -> None:
    """Of all models, of one, and of one version; an unknown one is not found."""
    async with staged() as stage:
        stage.digits.metrics.note_scored(3, 10, 20)
        stage.digits.metrics.flush()
        everything = await stage.ask("ModelStatistics", metadata=BEARER)
        assert [(entry.name, entry.version) for entry in everything.model_stats] == [
            ("digits", "3"),
            ("letters", "3"),
            ("script", "3"),
        ]
        asked = stage.ask("ModelStatistics", name="digits", version="3", metadata=BEARER)
        (digits,) = (await asked).model_stats
        assert digits == everything.model_stats[0]
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
    """For whoever has a key of a model, or the admin key."""
    async with staged() as stage:
        supervisor = supervised(stage.gateway)
        first, other = (await stage.ask("RepositoryIndex", ready=True, metadata=BEARER)).models
        assert (first.name, first.version, first.state) == ("digits", "3", "READY")
        assert (other.name, other.version) == ("other", "")
        await stage.ask("RepositoryIndex", metadata=ADMIN)
        assert supervisor.asked == [AskIndex(0, ready=True), AskIndex(1, ready=False)]


async def test_models_are_loaded_and_unloaded_with_the_admin_key() -> None:
    """With the parameters that HTTP has."""
    async with staged() as stage:
        supervisor = supervised(stage.gateway)
        config = {"config": {"string_param": '{"version_policy": {"all": {}}}'}}
        await stage.ask("RepositoryModelLoad", model_name="digits", metadata=ADMIN)
        await stage.ask("RepositoryModelLoad", model_name="digits", parameters=config, metadata=ADMIN)
        flag = {"unload_dependents": {"bool_param": True}}
        await stage.ask("RepositoryModelUnload", model_name="digits", parameters=flag, metadata=ADMIN)
        assert supervisor.asked == [
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
        assert not supervisor.asked


async def test_the_admin_key_is_asked_for_as_metadata() -> None:
    """Callers of gRPC send no headers."""
    async with staged() as stage:
        supervised(stage.gateway)
        error = await refused(stage.ask("RepositoryModelLoad", model_name="digits"))
        assert error.details().endswith(
            "needs the admin key ('stoker keys show admin'): send the metadata 'authorization: Bearer <key>'."
        )


async def test_a_load_that_took_too_long_is_told_by_its_code() -> None:
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
async def test_what_the_supervisor_refuses_has_its_status(status: int, code: str) -> None:
    """That of its error over HTTP, in the terms of gRPC."""
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


# --- infer ---


async def test_a_request_is_scored_and_named() -> None:
    """Answer, version, the caller's id, and the request id that the log has."""
    async with staged() as stage:
        call = stage.infers(3, 4, id="mine", metadata=(*BEARER, ("x-request-id", "r-7")))
        answer = await call
        assert (answer.model_name, answer.model_version, answer.id) == ("digits", "3", "mine")
        assert numbers_of(answer) == [6, 8]
        assert dict(await call.trailing_metadata()) == {"x-request-id": "r-7"}
        unnamed = stage.infers()
        await unnamed
        ids = [ids for _, ids, _ in stage.infer.calls]
        assert ids[0] == b"r-7"
        assert dict(await unnamed.trailing_metadata())["x-request-id"].encode() == ids[1]


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("authorization", ""),),
        (("authorization", KEY),),
        (("authorization", f"Basic {KEY}"),),
        (("authorization", "Bearer not-the-key"),),
        (("x-api-key", KEY),),
    ],
    ids=["none", "empty", "no scheme", "other scheme", "wrong key", "other name"],
)
@pytest.mark.parametrize("name", ["ModelInfer", "ModelStreamInfer"])
async def test_without_a_valid_key_the_message_is_not_read(name: str, metadata: Any) -> None:
    """Unauthenticated, before anything is told of the message: not even whether it is one."""
    async with staged() as stage:
        method = stage.channel.stream_unary(f"/{SERVICE}/{name}")

        async def never() -> AsyncIterator[bytes]:
            await asyncio.Event().wait()
            yield b""

        error = await refused(method(never(), metadata=metadata, timeout=PATIENCE_S))
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        assert error.details() == "A valid key is needed: send the metadata 'authorization: Bearer <key>'."
        assert dict(error.trailing_metadata())["error-code"] == "unauthorized"


async def test_each_model_has_its_own_keys() -> None:
    """A key of another model opens neither this one nor a request of a stream."""
    async with staged() as stage:
        error = await refused(stage.infers(metadata=(("authorization", f"Bearer {OTHER_KEY}"),)))
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        stream = stage.method("ModelStreamInfer")(metadata=(("authorization", f"Bearer {OTHER_KEY}"),))
        await stream.write(rows(id="1"))
        reply = await stream.read()
        assert "A valid key is needed: send the metadata 'authorization: Bearer" in reply.error_message
        assert reply.infer_response.id == "1"
        assert not stage.infer.calls


async def test_requests_that_name_no_version_go_by_weights() -> None:
    """By turns, or by a value of the metadata."""
    async with staged() as stage:
        model, other = stage.gateway.models["digits"], stage.gateway.services["script"]
        other.signature, other.version = ROWS, "7"
        versions = {**model.versions, "7": ServedVersion(VersionStatus(2, "AVAILABLE"), other)}
        split = Split({"3": 1, "7": 1}, b"x-user")
        stage.gateway.route("digits", ServedModel(versions, "3", {}, split))
        for metadata in [BEARER] * 4 + [(*BEARER, ("x-user", "me"))] * 2:
            await stage.infers(1, 2, metadata=metadata)
        await stage.infers(1, 2, model_version="7")
        answered = [name.partition(":")[2] for name, *_ in stage.infer.calls]
        assert answered == ["3", "7"] * 2 + [split.next(b"me")] * 2 + ["7"]


async def test_a_version_is_reached_where_the_model_has_no_default() -> None:
    """Its key is known too."""
    async with staged() as stage:
        for name, model in list(stage.gateway.models.items()):
            stage.gateway.route(name, ServedModel(model.versions, None))
        assert not stage.gateway.services
        assert numbers_of(await stage.infers(1, 2, model_version="3")) == [2, 4]
        error = await refused(stage.infers(metadata=()))
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"model_name": "none"}, "NOT_FOUND", "Request for unknown model: 'none' is not found"),
        ({"model_version": "9"}, "NOT_FOUND", "Request for unknown model: 'digits' version 9 is not found"),
        (
            {"outputs": [{"name": "z"}]},
            "INVALID_ARGUMENT",
            "unexpected inference output 'z' for model 'digits'",
        ),
        ({"raw_input_contents": [b""]}, "INVALID_ARGUMENT", "needs 8"),
        ({"model_name": "script"}, "INVALID_ARGUMENT", "'script' is an entry script that takes whole bodies"),
    ],
)
async def test_errors_have_their_status(fields: dict[str, Any], code: str, text: str) -> None:
    """And nothing of them reaches the device."""
    async with staged() as stage:
        error = await refused(stage.infers(**fields))
        assert (error.code().name, text in error.details()) == (code, True), error.details()
        assert dict(error.trailing_metadata())["x-request-id"]
        assert not stage.infer.calls


async def test_a_model_that_is_loading_is_unavailable() -> None:
    """With the time after which to ask again."""
    async with staged() as stage:
        error = await refused(
            stage.infers(model_name="letters", metadata=(("authorization", f"Bearer {OTHER_KEY}"),))
        )
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert dict(error.trailing_metadata())["retry-after"] == "1"


@pytest.mark.parametrize(
    ("error", "code", "metadata"),
    [
        (
            Overloaded("full", refusal=ToldRefusal(503, "overloaded", 6500, rows_ahead=9)),
            "UNAVAILABLE",
            {
                "retry-after": "7",
                "retry-after-ms": "6500",
                "grpc-retry-pushback-ms": "6500",
                "stoker-refused": "reason=rows, rows-ahead=9",
            },
        ),
        (ModelFailed(error_id="e-1"), "INTERNAL", {"error-id": "e-1"}),
        (InvalidInput("ü" * 4000), "INVALID_ARGUMENT", {}),
        (ZeroDivisionError("a secret of the log"), "INTERNAL", {}),
    ],
    ids=["overloaded", "model failed", "long", "fault"],
)
async def test_errors_of_the_device_reach_the_caller(
    error: Exception, code: str, metadata: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """With what belongs to them; a fault of the server tells nothing but where to look."""
    async with staged() as stage:
        stage.infer.error = error
        seen = await refused(stage.infers())
        assert seen.code().name == code
        assert metadata.items() <= dict(seen.trailing_metadata()).items()
        assert len(seen.details()) <= 1024
        assert "secret" not in seen.details()
        assert ("secret" in caplog.text) is isinstance(error, ZeroDivisionError)


def error_classes(base: type[StokerError] = StokerError) -> Iterator[type[StokerError]]:
    yield base
    for below in base.__subclasses__():
        yield from error_classes(below)


async def test_a_caller_s_limit_ends_a_call_with_when_to_come_back(tmp_path: Path) -> None:
    """RESOURCE_EXHAUSTED, with what the retry policies of clients keep to; with too many rows at once without."""
    keyring = Keyring(tmp_path / "keys", "digits")
    keyring.ensure()
    key = CallerBook(keyring.keys_dir).add("ads", terms={"rows_per_s": 2.0, "burst_s": 0.5})
    metadata = (("authorization", f"Bearer {key}"),)
    memory = metric_memory()
    async with staged() as stage:
        stage.digits.access = Access(KeyVerifier(keyring.keys_dir, "digits", model="digits"))
        stage.digits.quotas = Quotas(
            memory.caller_usage(),
            memory.page(0).callers,
            KnownCallers(keyring.keys_dir),
            several=False,
            clock_ns=HandClock(),
        )
        assert numbers_of(await stage.infers(1, 2, metadata=metadata)) == [2, 4]
        error = await refused(stage.infers(1, 2, metadata=metadata))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        told = dict(error.trailing_metadata())
        assert (told["error-code"], told["stoker-refused"]) == ("quota_exceeded", "reason=quota-rows")
        assert (told["retry-after"], told["retry-after-ms"]) == ("1", "500")
        assert told["grpc-retry-pushback-ms"] == "500"
        two = rows(1, 2)
        two.inputs[0].shape[0] = 2
        two.raw_input_contents[0] += two.raw_input_contents[0]
        error = await refused(stage.method("ModelInfer")(two, metadata=metadata, timeout=PATIENCE_S))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        told = dict(error.trailing_metadata())
        assert told["error-code"] == "request_over_quota"
        assert "retry-after" not in told


async def test_every_error_has_a_status_that_agrees_with_http() -> None:
    """Where HTTP blames the caller gRPC does, and what is worth a retry is so in both."""
    retried = {errors.Overloaded, errors.NotReady, errors.DeviceLost, errors.DeviceOutOfMemory}
    retried.add(errors.TooManySequences)
    for kind in error_classes():
        error = kind.__new__(kind)
        code = next(code for code in grpc.StatusCode if code.value[0] == status_of(error))
        assert code is not grpc.StatusCode.UNKNOWN
        if 400 <= kind.status < 500:
            assert code is not grpc.StatusCode.INTERNAL, kind
        scarce = kind in retried or kind.status in {413, 429}
        assert (code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)) is scarce, kind


async def test_the_callers_deadline_and_the_timeout_limit_the_wait() -> None:
    """The shorter of both reaches the device; none of them leaves the model's own."""
    async with staged() as stage:
        request = rows()
        request.parameters["timeout"].int64_param = 3_000_000
        method = stage.method("ModelInfer")
        await method(request, metadata=BEARER)
        await method(request, metadata=BEARER, timeout=100)
        await method(request, metadata=BEARER, timeout=2)
        await method(rows(), metadata=BEARER, timeout=50)
        await method(rows(), metadata=BEARER)
        first, second, third, fourth, fifth = [wait for _, _, wait in stage.infer.calls]
        assert (first, second, fifth) == (3_000_000_000, 3_000_000_000, None)
        assert third is not None
        # gRPC rounds what is left up.
        assert 0 < third <= 2_100_000_000
        assert fourth is not None
        assert 3_000_000_000 < fourth <= 51_000_000_000


async def test_the_inputs_of_a_refused_request_are_freed_at_once() -> None:
    """Without a collection of garbage: they may have 100 MiB."""
    async with staged() as stage:
        watched: list[Any] = []
        stage.infer.watch = lambda rows: watched.append(weakref.ref(rows[0]))
        stage.infer.error = Overloaded("full", retry_after_s=1)
        gc.disable()
        try:
            await refused(stage.infers(1, 2))
            # This one has passed through the loop behind the first.
            await stage.ask("ServerLive")
            assert watched[0]() is None
        finally:
            gc.enable()


@pytest.mark.parametrize("way", ["cancelled", "late"])
async def test_a_caller_who_goes_gives_the_rows_up(way: str) -> None:
    """The request is cancelled on the device's side too."""
    async with staged() as stage:
        stage.infer.gate = asyncio.Event()
        # The channel is open and both sides have done all once: what a deadline leaves is for the request alone.
        await stage.ask("ServerLive")
        call = stage.infers(timeout=PATIENCE_S if way == "cancelled" else 2.0)
        await stage.infer.has_begun()
        if way == "cancelled":
            call.cancel()
        else:
            assert (await refused(call)).code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await asyncio.wait_for(stage.infer.given_up.acquire(), PATIENCE_S)


async def test_messages_above_the_limit_are_refused() -> None:
    """By gRPC itself, before they are a message; the connection stays."""
    async with staged() as stage:
        error = await refused(stage.infers(raw_input_contents=[bytes(1 << 17)]))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert numbers_of(await stage.infers(1, 2)) == [2, 4]


async def test_long_messages_of_methods_that_infer_nothing_are_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody has shown a key by then."""
    monkeypatch.setattr(services, "_MAX_SHORT_BYTES", 1000)
    async with staged() as stage:
        for name in ("ModelReady", "ModelMetadata"):
            error = await refused(stage.ask(name, name="d" * 1001))
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "this method reads 1000" in error.details()
        assert (await stage.ask("ModelReady", name="digits")).ready


@pytest.mark.parametrize("algorithm", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_compressed_messages_are_read_up_to_the_limit(algorithm: Any) -> None:
    """It holds for what they become too."""
    async with staged() as stage:
        method = stage.method("ModelInfer")
        assert numbers_of(await method(rows(1, 2), metadata=BEARER, compression=algorithm)) == [2, 4]
        bomb = rows(raw_input_contents=[bytes(1 << 22)])
        error = await refused(method(bomb, metadata=BEARER, compression=algorithm))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_message_that_is_none_is_an_error_of_its_call() -> None:
    """Bytes that are no message end the call, not the server."""
    async with staged() as stage:
        method = stage.channel.unary_unary(f"/{SERVICE}/ModelInfer")
        error = await refused(method(b"\xff\xff\xff", metadata=BEARER, timeout=PATIENCE_S))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error.details() == "the message is no ModelInferRequest"
        assert numbers_of(await stage.infers(1, 2)) == [2, 4]


# --- streams ---


async def test_a_message_that_is_none_is_an_error_within_its_stream() -> None:
    """The next one is answered."""
    async with staged() as stage:
        method = stage.channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")
        stream = method(metadata=BEARER, timeout=PATIENCE_S)
        read = message("ModelStreamInferResponse").FromString
        await stream.write(b"\xff\xff\xff")
        assert read(await stream.read()).error_message == "the message is no ModelInferRequest"
        await stream.write(rows(1, 2).SerializeToString())
        assert numbers_of(read(await stream.read()).infer_response) == [2, 4]


async def test_a_stream_is_answered_in_order_side_by_side() -> None:
    """All of it is under way at once; errors are among the answers and end nothing."""
    async with staged() as stage:
        stage.infer.gate = asyncio.Event()
        stream = stage.method("ModelStreamInfer")(metadata=BEARER, timeout=PATIENCE_S)
        for number in range(6):
            await stream.write(
                rows(number, 0, id=str(number), model_name="none" if number == 3 else "digits")
            )
        await stream.done_writing()
        await stage.infer.has_begun(5)
        stage.infer.gate.set()
        replies = [reply async for reply in stream]
        assert [reply.infer_response.id for reply in replies] == list("012345")
        bad = replies.pop(3)
        assert bad.error_message == "Request for unknown model: 'none' is not found"
        assert [numbers_of(reply.infer_response)[0] for reply in replies] == [0, 2, 4, 8, 10]
        assert not any(reply.error_message for reply in replies)
        assert all(reply.infer_response.parameters["triton_final_response"].bool_param for reply in replies)
        assert await stream.code() is grpc.StatusCode.OK


async def test_the_only_request_of_a_stream_is_answered() -> None:
    """Though its caller has ended the stream by then: the answer is on its way before the server ends it too."""
    async with staged() as stage:
        stage.infer.gate = asyncio.Event()
        method = stage.channel.unary_stream(
            f"/{SERVICE}/ModelStreamInfer",
            request_serializer=message("ModelInferRequest").SerializeToString,
            response_deserializer=message("ModelStreamInferResponse").FromString,
        )
        stream = method(rows(1, 2, id="only"), metadata=BEARER, timeout=PATIENCE_S)
        await stage.infer.has_begun(1)
        stage.infer.gate.set()
        assert [reply.infer_response.id async for reply in stream] == ["only"]
        assert await stream.code() is grpc.StatusCode.OK


async def test_a_fault_is_an_error_of_its_request(caplog: pytest.LogCaptureFixture) -> None:
    """Not of the stream; and the log has it."""
    async with staged() as stage:
        stage.infer.error = ZeroDivisionError("a secret of the log")
        stream = stage.method("ModelStreamInfer")(metadata=BEARER, timeout=PATIENCE_S)
        await stream.write(rows())
        assert "Check the logs" in (await stream.read()).error_message
        stage.infer.error = None
        await stream.write(rows(1, 2))
        assert numbers_of((await stream.read()).infer_response) == [2, 4]
        assert "secret" in caplog.text


async def test_a_stream_has_so_many_requests_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest waits with the caller."""
    monkeypatch.setattr(infer.InferDispatcher, "max_stream_requests", 3)
    async with staged() as stage:
        stage.infer.gate = asyncio.Event()
        stream = stage.method("ModelStreamInfer")(metadata=BEARER, timeout=PATIENCE_S)
        for number in range(9):
            await stream.write(rows(number, 0, id=str(number)))
        await stream.done_writing()
        await stage.infer.has_begun(3)
        stage.infer.gate.set()
        assert [reply.infer_response.id async for reply in stream] == list("012345678")
        assert stage.infer.most_under_way <= 3


async def test_a_stream_that_is_cancelled_gives_its_rows_up() -> None:
    """All of its requests that are under way."""
    async with staged() as stage:
        stage.infer.gate = asyncio.Event()
        stream = stage.method("ModelStreamInfer")(metadata=BEARER, timeout=PATIENCE_S)
        for _ in range(3):
            await stream.write(rows())
        await stage.infer.has_begun(3)
        stream.cancel()
        for _ in range(3):
            await asyncio.wait_for(stage.infer.given_up.acquire(), PATIENCE_S)


# --- ports and the end ---


async def test_large_messages_are_on_the_budget_of_large_bodies() -> None:
    """Those that it does not cover are told to come again; small ones are not counted, nor what is answered."""
    mib = 1 << 20
    large = ModelInferRequest(model_name="digits", raw_input_contents=[bytes(2 * mib)])
    large.inputs.add(name="x", datatype="FP32", shape=[mib // 4, 2])
    async with staged(max_message_bytes=4 * mib) as stage:
        stage.gateway.bodies = BodyBudget(6 * mib)
        stage.infer.gate = asyncio.Event()
        method = stage.method("ModelInfer")
        held = asyncio.ensure_future(method(large, metadata=BEARER, timeout=PATIENCE_S))
        await stage.infer.has_begun()
        assert stage.gateway.bodies.left_bytes == 3 * mib
        error = await refused(method(large, metadata=BEARER, timeout=PATIENCE_S))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert dict(error.trailing_metadata())["retry-after"] == "1"
        stream = stage.method("ModelStreamInfer")(metadata=BEARER)
        await stream.write(large)
        assert "Too many large" in (await stream.read()).error_message
        await stream.done_writing()
        stage.infer.gate.set()
        assert numbers_of(await stage.infers(1, 2)) == [2, 4]
        await held
        assert stage.gateway.bodies.left_bytes == 6 * mib


@pytest.mark.parametrize(
    ("limit", "sent", "said"),
    [
        ("_HANDSHAKE_MS", b"", b"handshake timeout"),
        ("_IDLE_MS", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SETTINGS + ACKNOWLEDGED, b"connection idle"),
        ("_SILENT_PEER_MS", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SETTINGS + ACKNOWLEDGED, b"ping_timeout"),
    ],
)
async def test_connections_on_which_nothing_happens_are_closed(
    monkeypatch: pytest.MonkeyPatch, limit: str, sent: bytes, said: bytes
) -> None:
    """Those who say nothing at all, those who call nobody, and those who have gone without a word."""
    monkeypatch.setattr(server, limit, 200)
    monkeypatch.setattr(server, "_LOOK_FOR_PEER_MS", 200)
    async with staged() as stage:
        reader, writer = await asyncio.open_connection("127.0.0.1", stage.server.port)
        writer.write(sent)
        async with asyncio.timeout(PATIENCE_S):
            assert said in await reader.read()
        writer.close()


async def test_servers_share_a_port() -> None:
    """One in each frontend; the kernel spreads connections."""
    async with staged() as first, staged(address=f"127.0.0.1:{first.server.port}") as second:
        assert second.server.port == first.server.port
        assert (await second.ask("ServerLive")).live


async def test_all_connections_are_served_alike() -> None:
    """Whichever of the library's servers the kernel gives them to; and none of these is left behind."""
    own_connection = [("grpc.use_local_subchannel_pool", 1)]
    async with staged() as stage, AsyncExitStack() as stack:
        for number in range(48):
            channel = grpc.aio.insecure_channel(f"127.0.0.1:{stage.server.port}", own_connection)
            await stack.enter_async_context(channel)
            other = replace(stage, channel=channel)
            assert numbers_of(await other.infers(number, 1)) == [2 * number, 2]
            health = health_pb2_grpc.HealthStub(channel)
            assert (await health.Check(health_pb2.HealthCheckRequest(service="digits"))).status == 1
        await stage.server.stop(0)
        await until(lambda: refuses(stage.server.port), "the port is closed")


async def test_a_server_that_stops_answers_what_is_under_way() -> None:
    """Calls and streams; then it is gone, without waiting for those who only watch."""
    async with staged() as stage:
        stage.infer.gate = asyncio.Event()
        watch = health_pb2_grpc.HealthStub(stage.channel).Watch(health_pb2.HealthCheckRequest())
        await watch.read()
        call = asyncio.ensure_future(stage.infers(1, 2))
        stream = stage.method("ModelStreamInfer")(metadata=BEARER)
        await stream.write(rows(3, 4))
        await stage.infer.has_begun(2)
        stopping = asyncio.ensure_future(stage.server.stop(PATIENCE_S))
        await until(lambda: refuses(stage.server.port), "the port is closed")
        assert not stopping.done()
        stage.infer.gate.set()
        assert numbers_of(await call) == [2, 4]
        assert numbers_of((await stream.read()).infer_response) == [6, 8]
        ended = await refused(stream.read())
        assert ended.code() is grpc.StatusCode.UNAVAILABLE
        assert dict(ended.trailing_metadata())["retry-after"] == "1"
        assert await asyncio.wait_for(stopping, PATIENCE_S) == 0


async def test_a_server_that_stops_answers_what_has_arrived() -> None:
    """Also the calls that the library has not handed over yet; their callers then open connections elsewhere."""
    async with staged() as stage:
        calls = [asyncio.ensure_future(stage.infers(number, 1)) for number in range(200)]
        await stage.infer.has_begun()
        assert await stage.server.stop(PATIENCE_S) == 0
        answers = await asyncio.gather(*calls)
        assert [numbers_of(answer)[0] for answer in answers] == [2 * number for number in range(200)]


async def test_over_tls_nothing_is_lost_either() -> None:
    """What has arrived is answered, and callers are sent away in the same words."""
    credentials = grpc.ssl_channel_credentials((TLS / "localhost.crt").read_bytes())
    async with (
        staged(tls=TlsListener(TLS_FILES, "grpc", metric_memory().page(0))) as stage,
        grpc.aio.secure_channel(f"localhost:{stage.server.port}", credentials) as channel,
    ):
        secure = replace(stage, channel=channel)
        calls = [asyncio.ensure_future(secure.infers(number, 1)) for number in range(200)]
        await stage.infer.has_begun()
        assert await stage.server.stop(PATIENCE_S) == 0
        answers = await asyncio.gather(*calls)
        assert [numbers_of(answer)[0] for answer in answers] == [2 * number for number in range(200)]


async def test_a_server_that_has_waited_long_enough_cuts_off() -> None:
    """And says how many calls that were."""
    async with staged() as stage:
        stage.infer.gate = asyncio.Event()
        call = stage.infers(1, 2)
        await stage.infer.has_begun()
        assert await stage.server.stop(0.01) == 1
        assert (await refused(call)).code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


def refuses(port: int) -> bool:
    with socket.socket() as sock:
        # At first nothing answers at all: this must not wait for it in the server's own loop.
        sock.settimeout(0.01)
        return sock.connect_ex(("127.0.0.1", port)) != 0


async def until(look: Callable[[], bool], what: str) -> None:
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while not look():
        assert asyncio.get_running_loop().time() < deadline, f"not in time: {what}"
        await asyncio.sleep(0.01)
