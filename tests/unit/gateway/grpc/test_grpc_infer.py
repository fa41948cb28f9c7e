"""Infer requests over gRPC: their errors, keys and deadlines, alone and in streams."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import msgspec
import numpy as np
import pytest
from tests.patience import PATIENCE_S
from tests.puppets import HandClock, metric_memory
from tests.unit.gateway.grpc.stage import BEARER, KEY, OTHER_KEY, ROWS, numbers_of, refused, rows, staged

from stoker import errors
from stoker.errors import InvalidInput, ModelFailed, Overloaded, StokerError
from stoker.errors import Refusal as ToldRefusal
from stoker.gateway.grpc import infer, services
from stoker.gateway.grpc.messages import SERVICE, ModelInferRequest, message
from stoker.gateway.grpc.metadata import status_of
from stoker.gateway.rows.urgency import Quotas
from stoker.gateway.served_models import ServedModel, ServedVersion
from stoker.keys.access import Access
from stoker.keys.callers import CallerBook, KnownCallers
from stoker.keys.keyring import Keyring
from stoker.keys.verifier import KeyVerifier
from stoker.settings.versions import VersionStatus
from stoker.takeover.traffic_split import Split
from stoker.wire.http2.frames import STREAM_WINDOW_BYTES

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("late_grpc_events")]


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
    """The error says nothing about the message, not even whether it is valid."""
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
        model, other = stage.gateway.directory.models["digits"], stage.gateway.directory.services["script"]
        other.signature, other.facts = ROWS, msgspec.structs.replace(other.facts, version="7")
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
        for name, model in list(stage.gateway.directory.models.items()):
            stage.gateway.route(name, ServedModel(model.versions, None))
        assert not stage.gateway.directory.services
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
    """RESOURCE_EXHAUSTED has the delay that clients' retry policies use; a request with too many rows has none."""
    keyring = Keyring(tmp_path / "keys", "digits")
    keyring.ensure()
    key = CallerBook(keyring.keys_dir).add("ads", terms={"rows_per_s": 2.0, "burst_s": 0.5})
    metadata = (("authorization", f"Bearer {key}"),)
    memory = metric_memory()
    async with staged() as stage:
        stage.digits.access = Access(KeyVerifier(keyring.keys_dir, "digits", model="digits"))
        quotas = Quotas(
            memory.caller_usage(),
            memory.page(0).callers,
            KnownCallers(keyring.keys_dir),
            several=False,
            clock_ns=HandClock(),
        )
        stage.digits.limits = msgspec.structs.replace(stage.digits.limits, quotas=quotas)
        assert numbers_of(await stage.infers(1, 2, metadata=metadata)) == [2, 4]
        error = await refused(stage.infers(1, 2, metadata=metadata))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        trailers = dict(error.trailing_metadata())
        assert (trailers["error-code"], trailers["stoker-refused"]) == ("quota_exceeded", "reason=quota-rows")
        assert (trailers["retry-after"], trailers["retry-after-ms"]) == ("1", "500")
        assert trailers["grpc-retry-pushback-ms"] == "500"
        two = rows(1, 2)
        two.inputs[0].shape[0] = 2
        two.raw_input_contents[0] += two.raw_input_contents[0]
        error = await refused(stage.method("ModelInfer")(two, metadata=metadata, timeout=PATIENCE_S))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        trailers = dict(error.trailing_metadata())
        assert trailers["error-code"] == "request_over_quota"
        assert "retry-after" not in trailers


async def test_every_error_has_a_status_that_agrees_with_http() -> None:
    """Errors of the caller are the same in both, and so are errors worth a retry."""
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


@pytest.mark.usefixtures("no_collections")
async def test_the_inputs_of_a_refused_request_are_freed_at_once() -> None:
    """Without a collection of garbage: they may have 100 MiB."""
    async with staged() as stage:
        watched: list[Any] = []
        stage.infer.watch = lambda rows: watched.append(weakref.ref(rows[0]))
        stage.infer.error = Overloaded("full", retry_after_s=1)
        await refused(stage.infers(1, 2))
        # This one has passed through the loop behind the first.
        await stage.ask("ServerLive")
        assert watched[0]() is None


@pytest.mark.parametrize("way", ["cancelled", "late"])
async def test_a_lost_caller_abandons_its_rows(way: str) -> None:
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
    """The limit also holds for the decompressed message."""
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


@pytest.mark.parametrize("algorithm", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
async def test_a_stream_is_answered_beyond_the_window_of_its_sender(algorithm: Any) -> None:
    """The server gives room again also after it let the sender wait, while it decompressed or was busy."""
    count, rows_each = 40, 7000
    numbers = np.random.default_rng(1).random((count, rows_each, 2), "f4")
    assert numbers.nbytes > 2 * STREAM_WINDOW_BYTES
    async with staged() as stage:
        stream = stage.method("ModelStreamInfer")(metadata=BEARER, compression=algorithm, timeout=PATIENCE_S)

        async def send() -> None:
            for one in numbers:
                request = ModelInferRequest(model_name="digits", raw_input_contents=[one.tobytes()])
                request.inputs.add(name="x", datatype="FP32", shape=one.shape)
                await stream.write(request)
            await stream.done_writing()

        sending = asyncio.ensure_future(send())
        answers = [reply.infer_response.raw_output_contents[0] async for reply in stream]
        await sending
        assert answers == [(2 * one).tobytes() for one in numbers]


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
