"""Ten thousand requests of mixed callers: no answer has a bit of another caller's row in it."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from tests.http.raw_http import AsyncConnection, request
from tests.live_server import PRIMARY, LiveServer
from tests.zoo import ZOO

_REQUESTS = 10_000
_CONNECTIONS = 64
_MAX_BATCH_ROWS = 8
_MIXING, _APART = "mixing", "apart"


def _rows(size: int) -> np.ndarray:
    """Rows that would spoil others if those could see them, beside ordinary ones."""
    ordinary = np.random.default_rng(1).standard_normal((4, size)).astype(np.float32)
    spoilers = [0, 1e3, -1e6, 1e38, np.nan, np.inf, -np.inf, 1e-44]
    return np.concatenate([ordinary, [np.full(size, number, np.float32) for number in spoilers]])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A network whose quantisation takes its scale from the whole batch, and its twin with a constant one."""
    folder = tmp_path_factory.mktemp("models")
    written = {}
    for name, make in zip((_MIXING, _APART), ZOO["dynamic int8"], strict=True):
        written[name] = folder / f"{name}.onnx"
        written[name].write_bytes(make())
    return written


@pytest.fixture(scope="module")
def server(files: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """Both, with batches of at most 8 rows."""
    scratch = tmp_path_factory.mktemp("isolation")
    deployment = scratch / "deployment.yaml"
    lines = [
        f"  - {{path: {path}, threads: 1, max_batch_rows: {_MAX_BATCH_ROWS}}}" for path in files.values()
    ]
    deployment.write_text("\n".join(["frontends: 2", "models:", *lines]))
    with LiveServer(scratch, "--config", deployment) as running:
        yield running


def _answers_beside_zeros(path: Path, rows: np.ndarray) -> list[set[bytes]]:
    """For each row the bits that it may get: those at each place of a batch of zeros of each size."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options)
    (name,) = (value.name for value in session.get_inputs())
    found: list[set[bytes]] = []
    for row in rows:
        bits = set()
        for size in range(1, _MAX_BATCH_ROWS + 1):
            for place in range(size):
                batch = np.zeros((size, rows.shape[1]), np.float32)
                batch[place] = row
                bits.add(session.run(None, {name: batch})[0][place].tobytes())
        found.append(bits)
    return found


def _message(model: str, session: onnxruntime.InferenceSession, row: np.ndarray) -> bytes:
    (taken,), (given,) = session.get_inputs(), session.get_outputs()
    head = {
        "inputs": [
            {
                "name": taken.name,
                "shape": [1, len(row)],
                "datatype": "FP32",
                "parameters": {"binary_data_size": row.nbytes},
            }
        ],
        "outputs": [{"name": given.name, "parameters": {"binary_data": True}}],
    }
    text = json.dumps(head).encode()
    headers = [("Authorization", f"Bearer {PRIMARY}"), ("Inference-Header-Content-Length", str(len(text)))]
    return request("POST", f"/v2/models/{model}/infer", headers, text + row.tobytes())


async def _ask_all(port: int, messages: list[bytes], order: list[int]) -> list[tuple[int, bytes]]:
    """Send messages by their numbers; returns each number with the bits of its answer."""
    todo = order[::-1]
    answered = []

    async def ask() -> None:
        async with await AsyncConnection.open(port) as connection:
            while todo:
                number = todo.pop()
                answer = await connection.ask(messages[number])
                assert answer.status == 200, answer.body
                length = int(answer.header("inference-header-content-length") or len(answer.body))
                answered.append((number, answer.body[length:]))

    await asyncio.gather(*(ask() for _ in range(_CONNECTIONS)))
    return answered


@pytest.mark.anyio
async def test_no_bit_of_an_answer_depends_on_the_rows_of_others(
    server: LiveServer, files: Mapping[str, Path]
) -> None:
    """Both models answer each row as beside zeros: the one because it is not batched, the other in batches."""
    messages, expected = [], []
    for model, path in files.items():
        session = onnxruntime.InferenceSession(path)
        rows = _rows(session.get_inputs()[0].shape[1])
        messages += [_message(model, session, row) for row in rows]
        # A model that is not batched runs each request alone.
        expected += _answers_beside_zeros(path, rows)
    order = [number % len(messages) for number in range(_REQUESTS)]
    random.Random(7).shuffle(order)
    answered = await _ask_all(server.port, messages, order)
    assert len(answered) == _REQUESTS
    assert not [number for number, bits in answered if bits not in expected[number]]
    # Half of them are for it: fewer batches than that have been shared.
    assert server.metric("stoker_batch_rows_count", model=_APART, version="1") < 0.9 * _REQUESTS / 2


def test_the_findings_are_reported(server: LiveServer) -> None:
    """At the start, in the metadata, and as a metric."""
    assert "batched: " in server.output()
    assert "not batched: " in server.output()
    assert "batching: rows changes that" in server.output()
    for model, batched in ((_MIXING, False), (_APART, True)):
        batching = server.describe(f"/v2/models/{model}").json()["parameters"]["batching"]
        assert batching["batched"] is batched
        assert server.metric(
            "stoker_batching_info",
            model=model,
            version="1",
            batched=str(batched).lower(),
            how=batching["how"],
        )
