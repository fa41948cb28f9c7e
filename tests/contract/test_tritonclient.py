"""NVIDIA's own HTTP clients, as their users call them: `tritonclient.http` and `tritonclient.http.aio`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tests.contract.protocol_models import DATATYPES, MATRIX
from tests.live_server import PRIMARY, LiveServer
from tests.patience import PATIENCE_S
from tritonclient.utils import InferenceServerException

ROWS = np.array([[1, 2, 3, 4], [0, 0, 0, 1]], np.float32)
SCORES = ROWS @ MATRIX


@pytest.fixture(scope="module")
def client(protocol_server: LiveServer) -> Iterator[triton.InferenceServerClient]:
    """A client with four connections."""
    with triton.InferenceServerClient(f"127.0.0.1:{protocol_server.port}", concurrency=4) as made:
        yield made


@pytest.fixture
async def aio_client(protocol_server: LiveServer) -> AsyncIterator[triton_aio.InferenceServerClient]:
    """An asynchronous client."""
    async with triton_aio.InferenceServerClient(f"127.0.0.1:{protocol_server.port}") as made:
        yield made


def make_input(name: str, array: np.ndarray, datatype: str, *, binary: bool = True) -> triton.InferInput:
    """An input with its data."""
    made = triton.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array, binary_data=binary)
    return made


def key() -> dict[str, str]:
    """The header with the key; a new one for each request, for the client adds its own to it."""
    return {"Authorization": f"Bearer {PRIMARY}"}


def infer(client: Any, model: str, inputs: list[Any], **options: Any) -> Any:
    """Infer with the key."""
    return client.infer(model, inputs, headers=key(), **options)


def test_health_and_metadata(client: triton.InferenceServerClient) -> None:
    """The requests with which a client begins."""
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("scores")
    assert client.is_model_ready("scores", "1")
    assert not client.is_model_ready("unknown")
    assert client.get_server_metadata(headers=key())["name"] == "stoker"
    described = client.get_model_metadata("pair", headers=key())
    assert [info["name"] for info in described["inputs"]] == ["a", "b"]


def test_the_configuration_of_a_model(client: triton.InferenceServerClient) -> None:
    """Triton's tools read it first: the sizes of one row, the largest batch, and whether callers share one."""
    assert client.get_model_config("scores", headers=key()) == {
        "name": "scores",
        "platform": "onnxruntime_onnx",
        "backend": "onnxruntime",
        "version_policy": {"specific": {"versions": [1]}},
        "max_batch_size": 64,
        "input": [{"name": "x", "data_type": "TYPE_FP32", "format": "FORMAT_NONE", "dims": [4]}],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "label_filename": "", "dims": [3]}],
        "instance_group": [{"name": "scores_0", "kind": "KIND_AUTO"}],
        "model_transaction_policy": {"decoupled": False},
        "dynamic_batching": {"preferred_batch_size": [], "max_queue_delay_microseconds": 0},
    }
    # A number for each row has a shape of no sizes, which Triton writes so.
    (sums, _) = client.get_model_config("pair", "1", headers=key())["output"]
    assert (sums["dims"], sums["reshape"]) == ([1], {"shape": []})
    alone = client.get_model_config("scaled", headers=key())
    assert (alone["max_batch_size"], "dynamic_batching" in alone) == (0, False)
    assert [given["dims"] for given in alone["input"]] == [[3], [1]]
    assert client.get_model_config("sequence", headers=key())["input"][0]["dims"] == [-1]
    script = client.get_model_config("script", headers=key())
    assert (script["backend"], script["max_batch_size"], script["input"]) == ("python", 0, [])
    with pytest.raises(InferenceServerException, match="not found"):
        client.get_model_config("unknown", headers=key())


@pytest.mark.parametrize("binary_in", [False, True])
@pytest.mark.parametrize("binary_out", [False, True])
def test_json_and_binary(client: triton.InferenceServerClient, binary_in: bool, binary_out: bool) -> None:
    """The four combinations, with the request's id."""
    outputs = [triton.InferRequestedOutput("y", binary_data=binary_out)]
    result = infer(
        client, "scores", [make_input("x", ROWS, "FP32", binary=binary_in)], outputs=outputs, request_id="7"
    )
    assert np.array_equal(result.as_numpy("y"), SCORES)
    assert result.get_response()["id"] == "7"
    assert result.get_output("y")["datatype"] == "FP32"


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_compressed_both_ways(client: triton.InferenceServerClient, coding: str) -> None:
    """Requests and answers, long enough that the answer is worth it."""
    rows = np.tile(ROWS, (300, 1))
    result = infer(
        client,
        "scores",
        [make_input("x", rows, "FP32")],
        request_compression_algorithm=coding,
        response_compression_algorithm=coding,
    )
    assert np.array_equal(result.as_numpy("y"), rows @ MATRIX)


def test_several_inputs_and_outputs(client: triton.InferenceServerClient) -> None:
    """One input in the JSON, one binary; outputs in another order than the model's."""
    a, b = np.array([[0.5, 0.25]], np.float32), np.array([[1, 2, 3]])
    result = infer(
        client,
        "pair",
        [make_input("b", b, "INT64", binary=False), make_input("a", a, "FP32")],
        outputs=[
            triton.InferRequestedOutput("twice"),
            triton.InferRequestedOutput("sums", binary_data=False),
        ],
    )
    assert np.array_equal(result.as_numpy("twice"), 2 * b)
    assert np.array_equal(result.as_numpy("sums"), a.sum(1))


def test_all_outputs_without_naming_them(client: triton.InferenceServerClient) -> None:
    """The client asks for binary data with a parameter of the request then."""
    result = infer(client, "scores", [make_input("x", ROWS, "FP32")])
    assert np.array_equal(result.as_numpy("y"), SCORES)
    assert result.get_output("y")["parameters"] == {"binary_data_size": SCORES.nbytes}


def test_every_datatype(client: triton.InferenceServerClient) -> None:
    """All numeric datatypes at once, FP16 and BF16 among them."""
    random = np.random.default_rng(5)
    arrays = {
        name: random.integers(0, 2 if dtype == "bool" else 120, (3, 2)).astype(dtype)
        for name, dtype in DATATYPES.items()
    }
    result = infer(client, "every", [make_input(f"in_{name}", array, name) for name, array in arrays.items()])
    for name, array in arrays.items():
        assert result.as_numpy(f"out_{name}").dtype == array.dtype
        assert np.array_equal(result.as_numpy(f"out_{name}"), array)


@pytest.mark.parametrize("binary", [False, True])
def test_strings(client: triton.InferenceServerClient, binary: bool) -> None:
    """BYTES go in and come back as objects of bytes."""
    words = np.array([b"caf\xc3\xa9", b"", b"words"], object)
    outputs = [triton.InferRequestedOutput("same", binary_data=binary)]
    result = infer(client, "texts", [make_input("words", words, "BYTES", binary=binary)], outputs=outputs)
    came = result.as_numpy("same")
    assert [item if isinstance(item, bytes) else item.encode() for item in came] == words.tolist()


def test_no_batch_axis_and_scalars(client: triton.InferenceServerClient) -> None:
    """A scalar is an array of no axes."""
    x, k = np.array([1, 2, 3], np.float32), np.array(0.5, np.float32)
    result = infer(client, "scaled", [make_input("x", x, "FP32"), make_input("k", k, "FP32")])
    assert np.array_equal(result.as_numpy("y"), x / 2)
    assert result.as_numpy("again").shape == ()


@pytest.mark.parametrize("binary", [False, True])
def test_classification(client: triton.InferenceServerClient, binary: bool) -> None:
    """The two largest of each row, as value and index."""
    outputs = [triton.InferRequestedOutput("y", binary_data=binary, class_count=2)]
    result = infer(client, "scores", [make_input("x", ROWS, "FP32")], outputs=outputs)
    came = [
        [item.decode() if isinstance(item, bytes) else item for item in row] for row in result.as_numpy("y")
    ]
    assert came == [["14.000000:0", "5.500000:2"], ["1.000000:0", "1.000000:1"]]


def test_errors_carry_the_reason(client: triton.InferenceServerClient) -> None:
    """The client's exception has message and status."""
    for name, array, datatype, status, message in (
        ("z", ROWS, "FP32", "400", "unexpected inference input 'z' for model 'scores'"),
        ("x", ROWS[:, :3], "FP32", "400", "Expected [-1,4], got [2,3]"),
        ("x", ROWS.astype(np.float64), "FP64", "400", "data-type is 'FP64'"),
    ):
        with pytest.raises(InferenceServerException) as raised:
            infer(client, "scores", [make_input(name, array, datatype)])
        assert raised.value.status() == status
        assert message in raised.value.message()
    with pytest.raises(InferenceServerException, match="not found"):
        infer(client, "unknown", [make_input("x", ROWS, "FP32")])
    with pytest.raises(InferenceServerException, match="key"):
        client.infer("scores", [make_input("x", ROWS, "FP32")])


def test_requests_under_way_at_once(client: triton.InferenceServerClient) -> None:
    """`async_infer` of the synchronous client."""
    pending = [
        client.async_infer("scores", [make_input("x", ROWS + index, "FP32")], headers=key())
        for index in range(20)
    ]
    for index, one in enumerate(pending):
        assert np.allclose(one.get_result().as_numpy("y"), (ROWS + index) @ MATRIX)


def test_bodies_by_hand(client: triton.InferenceServerClient, protocol_server: LiveServer) -> None:
    """`generate_request_body` and `parse_response_body`, for callers with an HTTP client of their own."""
    import requests

    body, length = triton.InferenceServerClient.generate_request_body([make_input("x", ROWS, "FP32")])
    answer = requests.post(
        f"http://127.0.0.1:{protocol_server.port}/v2/models/scores/infer",
        data=body,
        headers={**key(), "Inference-Header-Content-Length": str(length)},
        timeout=PATIENCE_S,
    )
    result = triton.InferenceServerClient.parse_response_body(
        answer.content, header_length=int(answer.headers["Inference-Header-Content-Length"])
    )
    assert np.array_equal(result.as_numpy("y"), SCORES)


@pytest.mark.anyio
async def test_ids_are_never_swapped(aio_client: triton_aio.InferenceServerClient) -> None:
    """Requests that are batched together get their own answers, by number and by id."""

    async def one(index: int) -> None:
        rows = np.full((1 + index % 3, 4), index, np.float32)
        result = await aio_client.infer(
            "scores", [make_input("x", rows, "FP32")], request_id=f"id-{index}", headers=key()
        )
        assert result.get_response()["id"] == f"id-{index}"
        assert np.allclose(result.as_numpy("y"), rows @ MATRIX)

    await asyncio.gather(*(one(index) for index in range(200)))


@pytest.mark.anyio
async def test_requests_of_different_lengths_share_a_batch(
    aio_client: triton_aio.InferenceServerClient,
) -> None:
    """Where the deployment says how they are padded; each gets the answer that it would get alone."""

    async def one(length: int) -> None:
        tokens = np.zeros((1 + length % 2, length), np.int64)
        result = await aio_client.infer("padded", [make_input("tokens", tokens, "INT64")], headers=key())
        assert result.as_numpy("count").tolist() == [length] * len(tokens)

    await asyncio.gather(*(one(length) for length in range(1, 60)))


@pytest.mark.anyio
async def test_the_asynchronous_client(aio_client: triton_aio.InferenceServerClient) -> None:
    """Health, metadata, JSON, compression, strings and errors."""
    assert await aio_client.is_server_live()
    assert await aio_client.is_server_ready()
    assert await aio_client.is_model_ready("texts")
    assert (await aio_client.get_model_metadata("texts", headers=key()))["inputs"][0]["datatype"] == "BYTES"
    for binary in (False, True):
        outputs = [triton_aio.InferRequestedOutput("y", binary_data=binary)]
        rows = np.tile(ROWS, (200, 1))
        result = await aio_client.infer(
            "scores",
            [make_input("x", rows, "FP32", binary=binary)],
            outputs=outputs,
            headers=key(),
            request_compression_algorithm="gzip",
            response_compression_algorithm="deflate",
        )
        assert np.array_equal(result.as_numpy("y"), rows @ MATRIX)
    words = np.array([b"a", b"b"], object)
    result = await aio_client.infer("texts", [make_input("words", words, "BYTES")], headers=key())
    assert result.as_numpy("same").tolist() == [b"a", b"b"]
    with pytest.raises(InferenceServerException, match="unexpected inference input"):
        await aio_client.infer("scores", [make_input("z", ROWS, "FP32")], headers=key())
