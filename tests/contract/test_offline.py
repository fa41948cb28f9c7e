"""A Predictor gives the server's answers, bit for bit, for models of every kind and without an HTTP request."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tests.contract.protocol_models import DATATYPES
from tests.http.raw_http import scoring
from tests.live_server import PRIMARY, LiveServer

from stoker.offline import Predictor, loading
from stoker_client import Client

MORE_THAN_A_BATCH = 150
"""Rows for models with a `max_batch_rows` of 64."""


def deployment_of(server: LiveServer) -> Path:
    """The deployment file of the server of the protocols."""
    return server.scratch / "deployment" / "deployment.yaml"


def client_of(server: LiveServer, model: str) -> Client:
    """A client of one of its models."""
    return Client(f"http://127.0.0.1:{server.port}/api/v1/service/{model}/score", PRIMARY)


def check_equal(ours: dict[str, Any], theirs: dict[str, np.ndarray]) -> None:
    """Both have the same outputs, of the same datatypes and bits."""
    assert set(ours) == set(theirs)
    for name, array in theirs.items():
        assert (ours[name].dtype, ours[name].shape) == (array.dtype, array.shape), name
        same = ours[name].tolist() == array.tolist() if array.dtype == object else None
        assert same or ours[name].tobytes() == array.tobytes(), name


def tables(random: np.random.Generator) -> dict[str, dict[str, np.ndarray]]:
    """Inputs of each model of tensors."""
    words = np.array(["é", "", "a longer text"] * 50, object)
    tokens = random.integers(-1, 9, (MORE_THAN_A_BATCH, 5))
    return {
        "scores": {"x": random.standard_normal((MORE_THAN_A_BATCH, 4)).astype(np.float32)},
        "pair": {
            "a": random.standard_normal((MORE_THAN_A_BATCH, 2)).astype(np.float32),
            "b": random.integers(-(2**62), 2**62, (MORE_THAN_A_BATCH, 3)),
        },
        "every": {
            f"in_{name}": random.integers(0, 2 if dtype == "bool" else 100, (3, 2)).astype(dtype)
            for name, dtype in DATATYPES.items()
        },
        "texts": {"words": words},
        "bytes": {"image_bytes": words},
        "scaled": {"x": np.float32([1, 2, 3]), "k": np.float32(0.3)},
        "sequence": {"tokens": tokens},
        "padded": {"tokens": tokens},
    }


@pytest.mark.parametrize("model", list(tables(np.random.default_rng(0))))
def test_tensors_are_answered_as_by_the_server(protocol_server: LiveServer, model: str) -> None:
    """By name, in the model's datatypes: rows, several inputs, texts, scalars, free sizes, more than one batch."""
    table = tables(np.random.default_rng(5))[model]
    with (
        client_of(protocol_server, model) as client,
        Predictor(model, config=deployment_of(protocol_server)) as predictor,
    ):
        check_equal(predictor(table), client.infer(table))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    arrays.arrays(
        np.float32,
        st.tuples(st.integers(1, 70), st.just(4)),
        elements=st.floats(width=32, allow_nan=True, allow_infinity=True),
    )
)
def test_any_numbers_are_answered_as_by_the_server(
    scores: tuple[Client, Predictor], rows: np.ndarray
) -> None:
    """NaN, infinities, subnormal numbers, -0: each row has the answer that it has alone."""
    client, predictor = scores
    answer = predictor({"x": rows})
    check_equal(answer, client.infer({"x": rows}))
    assert predictor(rows[-1:]).tobytes() == answer["y"][-1:].tobytes()


@pytest.fixture(scope="module")
def scores(protocol_server: LiveServer) -> Iterator[tuple[Client, Predictor]]:
    """The model `scores` at the server, and here."""
    with (
        client_of(protocol_server, "scores") as client,
        Predictor("scores", config=deployment_of(protocol_server)) as predictor,
    ):
        yield client, predictor


def test_rows_of_different_sizes_are_requests_of_their_own(protocol_server: LiveServer) -> None:
    """They are padded together as the deployment says, and each answer is the one of the row alone."""
    rows = np.empty(4, object)
    rows[:] = [np.array([3, 4]), np.array([1, 2, 3]), np.array([5]), np.array([7, -1, 7])]
    answers = {}
    for model in ("padded", "sequence"):
        with (
            client_of(protocol_server, model) as client,
            Predictor(model, config=deployment_of(protocol_server)) as predictor,
        ):
            answers[model] = predictor({"tokens": rows})
            alone = [client.infer({"tokens": row[None]}) for row in rows]
            for name, column in answers[model].items():
                for ours, theirs in zip(column, alone, strict=True):
                    assert np.array_equal(ours, theirs[name][0])
    assert answers["padded"]["count"].tolist() == [2, 3, 1, 2]
    assert [len(row) for row in answers["sequence"]["doubled"]] == [2, 3, 1, 3]


@pytest.fixture
def script_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that may become an entry script's, and is none afterwards."""
    monkeypatch.chdir(Path.cwd())
    monkeypatch.setattr(loading, "_entered", [])
    before, folders = dict(os.environ), list(sys.path)
    yield
    os.environ.clear()
    os.environ.update(before)
    sys.path[:] = folders


@pytest.mark.usefixtures("script_process")
def test_an_entry_script_is_answered_as_by_the_server(protocol_server: LiveServer) -> None:
    """Rows go in bodies as the client's do, and bodies give the bytes that callers get."""
    rows = np.random.default_rng(3).standard_normal((23, 4))
    bodies = [b'{"data": [[0.1, 0.2], [3]]}', b'{"return": {"a": [1, null, "\xc3\xa9"]}}']
    with (
        client_of(protocol_server, "script") as client,
        Predictor("script", config=deployment_of(protocol_server), batch_rows=10) as predictor,
    ):
        ours = predictor(rows)
        assert ours.tobytes() == client.score_many(rows, batch_rows=10).tobytes()
        assert predictor({"a": rows})["result"].tobytes() == ours.tobytes()
        with protocol_server.connect() as connection:
            path = "/api/v1/service/script/score"
            theirs = [connection.ask(scoring(path, PRIMARY, body)).body for body in bodies]
        assert predictor.score_bodies(bodies) == theirs
        assert json.loads(theirs[0]) == [0.1 + 0.2, 3]
