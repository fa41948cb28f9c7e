"""Scripts whose `run` yields, over gRPC, as users of `tritonclient` call decoupled models."""

from __future__ import annotations

import asyncio
import functools
import json
import queue
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any, Self

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tests.contract.in_process import InProcessGrpcServer, go_on_until, script
from tests.patience import PATIENCE_S
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from stoker_azure.aml_response import AMLResponse

PIECE_BYTES = 50_000


class Steps:
    """The steps of a script, which its test allows one by one; by the name in the request."""

    def __init__(self) -> None:
        self.go = {name: threading.Semaphore(0) for name in "abc"}
        self.made = 0
        self.closed = threading.Event()


STEPS = Steps()


def count(raw_data: str) -> Iterator[Any]:
    """As many pieces as the body says; waits before each, is long or fails behind them if it says so."""
    wanted = json.loads(raw_data)
    STEPS.made = 0
    try:
        for number in range(wanted["pieces"]):
            if "waits" in wanted:
                assert STEPS.go[wanted["waits"]].acquire(timeout=PATIENCE_S)
            STEPS.made += 1
            yield {"piece": number, "text": f"é{number}", "filler": "x" * wanted.get("long", 0)}
        if wanted.get("fails"):
            raise ValueError("the end is missing")
    finally:
        STEPS.closed.set()


@functools.wraps(count)
def refusing(raw_data: str) -> Any:
    """A proxy before a script that answers itself, at length and in bytes that are no text."""
    return AMLResponse(raw_data.encode() + "é".encode() * 2000 + b"\xff", 403)


def whole(raw_data: str) -> Any:
    """Return the input at once."""
    return json.loads(raw_data)


class GrpcInProcess(InProcessGrpcServer):
    """Two models of one script, so that two of its streams go on at once."""

    def __init__(self) -> None:
        scripts = {"count": count, "other": count, "refusing": refusing, "whole": whole}
        super().__init__({name: script(run) for name, run in scripts.items()})


@pytest.fixture(scope="module")
def server() -> Iterator[GrpcInProcess]:
    """Scripts that yield."""
    with GrpcInProcess() as running:
        yield running


@pytest.fixture
def client(server: GrpcInProcess) -> Iterator[triton.InferenceServerClient]:
    """NVIDIA's client."""
    with triton.InferenceServerClient(server.address) as made:
        yield made


class Received:
    """Collects the answers that a client's callback gets."""

    def __init__(self, client: triton.InferenceServerClient) -> None:
        self._queue: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self._client = client

    def __enter__(self) -> Self:
        self._client.start_stream(lambda result, error: self._queue.put((result, error)))
        return self

    def __exit__(self, *_: object) -> None:
        self._client.stop_stream(cancel_requests=True)

    def next(self) -> Any:
        """The next answer; raises its error."""
        result, error = self._queue.get(timeout=PATIENCE_S)
        if error is not None:
            raise error
        return result.get_response()

    def numbers(self, count: int) -> list[int]:
        """The numbers of the next pieces."""
        return [number_of(self.next()) for _ in range(count)]


def number_of(answer: Any) -> int:
    (content,) = answer.raw_output_contents
    number: int = json.loads(content[4:])["piece"]
    return number


def is_final(answer: Any) -> bool:
    final: bool = answer.parameters["triton_final_response"].bool_param
    return final


def body_input(*, of: Any = triton, **wanted: Any) -> list[Any]:
    """The body as one text."""
    made = of.InferInput("raw_data", [1], "BYTES")
    made.set_data_from_numpy(np.array([json.dumps(wanted).encode()], object))
    return [made]


def member(name: str, value: Any, datatype: str) -> Any:
    made = triton.InferInput(name, [1], datatype)
    made.set_data_from_numpy(np.array([value]))
    return made


def test_each_piece_is_an_answer_and_the_end_is_marked_on_request(
    client: triton.InferenceServerClient,
) -> None:
    """Under the id of the request, when it is there: the first comes before the second is made."""
    with Received(client) as received:
        inputs = body_input(pieces=2, waits="a")
        client.async_stream_infer("count", inputs, request_id="7", enable_empty_final_response=True)
        STEPS.go["a"].release()
        first = received.next()
        assert (first.id, first.model_name, is_final(first)) == ("7", "count", False)
        assert [(output.name, output.datatype, list(output.shape)) for output in first.outputs] == [
            ("piece", "BYTES", [1])
        ]
        assert STEPS.made == 1
        STEPS.go["a"].release()
        assert number_of(received.next()) == 1
        last = received.next()
        assert (last.id, len(last.outputs), is_final(last)) == ("7", 0, True)


def test_the_end_is_not_marked_without_a_request(client: triton.InferenceServerClient) -> None:
    """As Triton does: the next answer of the stream is that of the next request."""
    with Received(client) as received:
        client.async_stream_infer("count", body_input(pieces=2), request_id="1")
        assert received.numbers(2) == [0, 1]
        client.async_stream_infer("count", body_input(pieces=1), request_id="2")
        assert received.next().id == "2"


def test_answers_of_one_stream_interleave(client: triton.InferenceServerClient) -> None:
    """By their ids, as their pieces are made: nobody waits for the end of another one."""
    with Received(client) as received:
        for model, name in (("count", "a"), ("other", "b")):
            client.async_stream_infer(model, body_input(pieces=2, waits=name), request_id=name)
        for name in "baab":
            STEPS.go[name].release()
            assert received.next().id == name


def test_inputs_of_other_names_are_members_and_so_are_outputs(client: triton.InferenceServerClient) -> None:
    """As callers of models with tensors of their own ask, such as those of vLLM's backend."""
    inputs = [member("pieces", 1, "INT64"), member("long", 2, "INT64")]
    outputs = [triton.InferRequestedOutput(name) for name in ("text", "piece", "absent")]
    with Received(client) as received:
        client.async_stream_infer("count", inputs, outputs=outputs)
        answer = triton.InferResult(received.next())
        assert answer.as_numpy("text").tolist() == ["é0".encode()]
        assert json.loads(answer.as_numpy("piece")[0])["filler"] == "xx"
        assert answer.as_numpy("absent") is None


def test_typed_contents_are_answered_with_typed_contents(server: GrpcInProcess) -> None:
    """As for other models."""
    request = service_pb2.ModelInferRequest(model_name="count", id="t")
    request.inputs.add(name="pieces", datatype="INT64", shape=[1]).contents.int64_contents.append(1)
    request.outputs.add(name="text")
    with grpc.insecure_channel(server.address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        (answer,) = stub.ModelStreamInfer(iter([request]), timeout=PATIENCE_S)
    (output,) = answer.infer_response.outputs
    assert list(output.contents.bytes_contents) == ["é0".encode()]


@pytest.mark.parametrize(
    ("wanted", "pieces", "text"),
    [
        ({"pieces": 1, "fails": 1}, 1, "unexpected error occurred in scoring script"),
        ({"pieces": 0, "fails": 1}, 0, "unexpected error occurred in scoring script"),
    ],
)
def test_failure_after_pieces_is_an_error_in_the_stream(
    server: GrpcInProcess, wanted: dict[str, int], pieces: int, text: str
) -> None:
    """The error has the request's id and its id in the log, and the stream goes on."""
    requests: queue.Queue[Any] = queue.Queue()
    failing = service_pb2.ModelInferRequest(model_name="count", id="failing")
    failing.inputs.add(name="raw_data", datatype="BYTES", shape=[1])
    content = json.dumps(wanted).encode()
    failing.raw_input_contents.append(len(content).to_bytes(4, "little") + content)
    requests.put(failing)
    with grpc.insecure_channel(server.address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        answers = stub.ModelStreamInfer(iter(requests.get, None), timeout=PATIENCE_S)
        for _ in range(pieces):
            assert next(answers).error_message == ""
        error = next(answers)
        assert text in error.error_message
        answer = error.infer_response
        assert (answer.id, is_final(answer)) == ("failing", True)
        assert answer.parameters["error_code"].string_param == "model_failed"
        assert len(answer.parameters["error_id"].string_param) == 16
        good = service_pb2.ModelInferRequest(model_name="count", id="good")
        good.inputs.add(name="pieces", datatype="INT64", shape=[1]).contents.int64_contents.append(1)
        requests.put(good)
        assert next(answers).infer_response.id == "good"
        requests.put(None)
        assert list(answers) == []


def test_an_error_text_of_a_script_is_cut_to_its_room(
    client: triton.InferenceServerClient,
) -> None:
    """This holds for any bytes of the text, cut at any place."""
    with Received(client) as received:
        client.async_stream_infer("refusing", body_input(pieces=1))
        with pytest.raises(InferenceServerException) as error:
            received.next()
    begin = json.dumps({"pieces": 1})
    assert error.value.message() == begin + "é" * (1024 - len(begin))


def test_input_that_no_script_can_take_is_refused(client: triton.InferenceServerClient) -> None:
    """A stream gets the error as an answer, a single call as its status."""
    two = [*body_input(pieces=1), member("pieces", 1, "INT64")]
    flat = triton.InferInput("raw_data", [2], "FP32")
    flat.set_data_from_numpy(np.zeros(2, np.float32))
    with Received(client) as received:
        for inputs, text in ((two, "send no other input"), ([flat], "one BYTES element")):
            client.async_stream_infer("count", inputs)
            with pytest.raises(InferenceServerException, match=text):
                received.next()
    with pytest.raises(InferenceServerException, match="call ModelStreamInfer") as refused:
        client.infer("count", body_input(pieces=1))
    assert refused.value.status() == "StatusCode.UNIMPLEMENTED"


def test_scripts_that_yield_are_described_as_decoupled(
    server: GrpcInProcess, client: triton.InferenceServerClient
) -> None:
    """Clients of Triton read that before they open a stream, over both protocols."""
    config = client.get_model_config("count", as_json=True)["config"]
    assert config["model_transaction_policy"] == {"decoupled": True}
    assert [(given["name"], given["data_type"], given["dims"]) for given in config["input"]] == [
        ("raw_data", "TYPE_STRING", ["1"])
    ]
    (output,) = client.get_model_metadata("count").outputs
    assert (output.name, output.datatype, list(output.shape)) == ("piece", "BYTES", [1])
    assert server.ask("GET", "/v2/models/count/config").json()["model_transaction_policy"] == {
        "decoupled": True
    }
    (tensor,) = server.ask("GET", "/v2/models/count").json()["inputs"]
    assert tensor == {"name": "raw_data", "datatype": "BYTES", "shape": [1]}
    whole = client.get_model_config("whole", as_json=True)["config"]
    assert ("decoupled" in whole["model_transaction_policy"], "input" in whole) == (False, False)


def test_the_asynchronous_client(server: GrpcInProcess) -> None:
    """The same pieces, from `stream_infer`."""

    async def ask() -> list[int]:
        async def requests() -> AsyncIterator[dict[str, Any]]:
            yield {"model_name": "count", "inputs": body_input(of=triton_aio, pieces=3)}

        async with triton_aio.InferenceServerClient(server.address) as client:
            answers = client.stream_infer(requests())
            return [number_of(result.get_response()) async for result, _ in answers]

    assert asyncio.run(ask()) == [0, 1, 2]


def test_the_generator_is_closed_when_the_stream_is_cancelled(client: triton.InferenceServerClient) -> None:
    """It hears of it with its next piece, and the next request finds the script free."""
    STEPS.closed.clear()
    with Received(client) as received:
        client.async_stream_infer("count", body_input(pieces=10**6, waits="c"))
        STEPS.go["c"].release()
        assert number_of(received.next()) == 0
    go_on_until(STEPS.closed, STEPS.go["c"])
    with Received(client) as received:
        client.async_stream_infer("count", body_input(pieces=1))
        assert number_of(received.next()) == 0


def test_the_script_waits_for_a_caller_that_does_not_read(server: GrpcInProcess) -> None:
    """The windows on the way bound the pieces: of 24 MB the last one is not made meanwhile."""
    STEPS.closed.clear()
    request = service_pb2.ModelInferRequest(model_name="count")
    for name, value in (("pieces", 480), ("long", PIECE_BYTES)):
        request.inputs.add(name=name, datatype="INT64", shape=[1]).contents.int64_contents.append(value)
    # The client would widen its window by the round trips that it measures: on a busy machine, to all pieces.
    with grpc.insecure_channel(server.address, options=[("grpc.http2.bdp_probe", 0)]) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        answers = stub.ModelStreamInfer(iter([request]), timeout=PATIENCE_S)
        assert next(answers).error_message == ""
        made = 0
        while made != STEPS.made:
            made = STEPS.made
            STEPS.closed.wait(0.1)
        assert not STEPS.closed.is_set()
        assert sum(1 for _ in answers) == 479
    assert STEPS.closed.wait(PATIENCE_S)


def test_a_deadline_of_a_request_holds_for_its_first_piece(client: triton.InferenceServerClient) -> None:
    """As over HTTP; the deadline of the stream itself ends all of it."""
    with Received(client) as received:
        client.async_stream_infer("count", body_input(pieces=1, waits="a"), timeout=50_000)
        with pytest.raises(InferenceServerException, match="timeout"):
            received.next()
        STEPS.go["a"].release()
