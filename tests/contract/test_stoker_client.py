"""Our own client on binary tensors, against a server: `infer`, and that `score` answers the same by either way."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from tests.contract.protocol_models import DATATYPES, MATRIX
from tests.live_server import LiveServer

from stoker_client import AsyncClient, Client, InvalidInput
from stoker_client.flow import BINARY_BYTES


@pytest.fixture(autouse=True)
def no_key_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the keys of the tests' user out of them."""
    monkeypatch.delenv("STOKER_KEY", raising=False)


@pytest.fixture
def scores(protocol_server: LiveServer) -> Iterator[Client]:
    """A client of the model `scores`."""
    with Client(uri(protocol_server, "scores"), protocol_server.key) as client:
        yield client


def uri(server: LiveServer, model: str) -> str:
    """A scoring URI."""
    return f"http://127.0.0.1:{server.port}/api/v1/service/{model}/score"


def test_infer_gives_arrays_of_the_models_datatypes(protocol_server: LiveServer) -> None:
    """All numeric datatypes at once, bit for bit."""
    random = np.random.default_rng(9)
    arrays = {
        f"in_{name}": random.integers(0, 2 if dtype == "bool" else 100, (3, 2)).astype(dtype)
        for name, dtype in DATATYPES.items()
    }
    with Client(uri(protocol_server, "every"), protocol_server.key) as client:
        outputs = client.infer(arrays)
        assert list(client.infer(arrays, ["out_INT8"])) == ["out_INT8"]
    for name, array in arrays.items():
        came = outputs[name.replace("in_", "out_")]
        assert came.dtype == array.dtype
        assert np.array_equal(came, array)


@pytest.mark.anyio
async def test_infer_on_strings_scalars_and_several_inputs(protocol_server: LiveServer) -> None:
    """By the asynchronous client."""
    key = protocol_server.key
    async with AsyncClient(uri(protocol_server, "texts"), key) as client:
        assert (await client.infer({"words": ["é", "b"]}))["same"].tolist() == ["é".encode(), b"b"]
    async with AsyncClient(uri(protocol_server, "scaled"), key) as client:
        outputs = await client.infer({"x": [1, 2, 3], "k": 0.5})
        assert (outputs["y"].tolist(), outputs["again"].shape) == ([0.5, 1.0, 1.5], ())
    async with AsyncClient(uri(protocol_server, "pair"), key) as client:
        outputs = await client.infer({"b": [[1, 2, 3]], "a": [[0.5, 0.25]]})
        assert (outputs["sums"].tolist(), outputs["twice"].tolist()) == ([0.75], [[2, 4, 6]])


def test_infer_is_refused_with_the_reason(scores: Client) -> None:
    """Missing inputs and other shapes are the server's to judge."""
    with pytest.raises(InvalidInput, match=r"Expected \[-1,4\], got \[1,3\]"):
        scores.infer({"x": [[1, 2, 3]]})
    with pytest.raises(InvalidInput, match="expected 1 inputs but got 0 inputs"):
        scores.infer({})


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("model", ["scores", "sequence", "script"])
def test_scores_are_the_same_by_either_way(protocol_server: LiveServer, model: str, dtype: type) -> None:
    """A list goes as JSON, an array of the same numbers as binary data where it can: no bit of the answer differs."""
    random = np.random.default_rng(17)
    rows = random.standard_normal((1024, 4)).astype(dtype)
    if model == "sequence":
        rows = random.integers(-(2**40), 2**40, (1024, 4)).astype(np.int64)
    assert rows.nbytes >= BINARY_BYTES
    with Client(uri(protocol_server, model), protocol_server.key) as client:
        by_array, by_list = client.score(rows), client.score(rows.tolist())
        # The list is what JSON makes of the array.
        as_json = client.score_json({"data": rows})
    if not isinstance(by_array, dict):
        by_array, by_list, as_json = {"y": by_array}, {"y": by_list}, {"y": as_json}
    for name, came in by_array.items():
        assert came.dtype == by_list[name].dtype
        assert np.array_equal(came, np.array(as_json[name], came.dtype))
    if model == "scores":
        assert by_array["y"].dtype == np.float32
        np.testing.assert_allclose(by_array["y"], rows @ MATRIX, rtol=1e-4, atol=1e-5)


def test_large_arrays_go_as_binary_data(protocol_server: LiveServer, scores: Client) -> None:
    """More numbers than fit into a body as JSON: 65 536 of them have 256 KiB, and 1.2 MB as text."""
    rows = np.random.default_rng(4).random((32768, 4), np.float32)
    assert len(str(rows.tolist())) > 1 << 20
    assert scores.score(rows).shape == (32768, 3)
