"""Scripts with state, as callers meet them: Azure's endpoint, Triton's clients, and Stoker's own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_triton
import tritonclient.http as triton
from tests.contract.in_process import MAX_BODY_BYTES, InProcessGrpcServer, InProcessServer
from tests.http.raw_http import Answer
from tritonclient.utils import InferenceServerException

from stoker.deployment import Deployment, Device
from stoker.runtimes.base import Runtime
from stoker.runtimes.script import load_script
from stoker.scripts.call_watchdog import Watchdog
from stoker.settings.sequence import SequenceSettings
from stoker_client import Client, UnknownSequence

ADDS = """
import json

def init(): ...

def run(raw_data, state):
    state["sum"] = state.get("sum", 0) + json.loads(raw_data)["data"][0]
    if state["sum"] > 100:
        raise ValueError("too much")
    return [state["sum"]]
"""
COUNTS = """
import json

def init(): ...

def run(raw_data, state):
    for _ in range(json.loads(raw_data)):
        state["n"] = state.get("n", 0) + 1
        yield state["n"]
"""
SUMS = """
import stoker

def init(): ...

@stoker.batched(shape=(1,), dtype="float32")
def run(data, states):
    for row, state in zip(data, states):
        state["sum"] = state.get("sum", 0) + float(row[0])
    return __import__("numpy").array([[state["sum"]] for state in states])
"""
NAMED = """
import json

def init(): ...

def run(raw_data, state, sequence_id):
    return {"id": sequence_id}
"""
NAMED_ROWS = """
import stoker

def init(): ...

@stoker.batched(shape=(), dtype="int64")
def run(data, states, sequence_id):
    assert isinstance(sequence_id, list)
    return sequence_id
"""
OVERFLOWS = """
import numpy as np
import stoker

def init(): ...

@stoker.batched(shape=(), dtype="float32")
def run(data, states):
    for state in states:
        state["n"] = state.get("n", 0) + 1
    return np.array([np.inf if state["n"] == 2 else state["n"] for state in states], float)
"""


@pytest.fixture(scope="module", name="own_script")
def keep_process_as_it_was() -> Iterator[None]:
    """Undo the changes of this process that loading scripts makes."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "environ", dict(os.environ))
        patched.setattr(sys, "path", list(sys.path))
        patched.setattr(Watchdog, "start", lambda self: None)
        yield
    sys.modules.pop("entry_module", None)


@pytest.fixture(scope="module")
def server(own_script: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessGrpcServer]:
    """A script that adds up, one that yields, one that takes batches, and two that read ids."""
    scratch = tmp_path_factory.mktemp("scripts")
    runtimes = {
        name: loaded(scratch / name, text)
        for name, text in (
            ("adds", ADDS),
            ("counts", COUNTS),
            ("sums", SUMS),
            ("named", NAMED),
            ("named_rows", NAMED_ROWS),
        )
    }
    with InProcessGrpcServer(runtimes) as running:
        yield running


def loaded(folder: Path, text: str) -> Runtime:
    """A script in a folder of its own."""
    folder.mkdir()
    (folder / "score.py").write_text(text)
    deployment = Deployment(
        folder.name, 1, "script", folder / "score.py", folder, 8, MAX_BODY_BYTES, sequence=SequenceSettings()
    )
    return load_script(deployment, Device("cpu", 0, "a processor"), 1)


def add(server: InProcessGrpcServer, number: float, sequence: str | None, *more: tuple[str, str]) -> Answer:
    """One request to the scoring URI of a script that adds up."""
    headers = [*more, *([] if sequence is None else [("Stoker-Sequence", sequence)])]
    return server.ask("POST", "/api/v1/service/adds/score", headers, b'{"data": [%d]}' % number)


def test_a_sequence_goes_through_both_doors(server: InProcessGrpcServer) -> None:
    """Its header names it; refused and failed requests change no state."""
    assert add(server, 1, "both; start").json() == [1]
    assert add(server, 2, "both", ("Upgrade", "nothing"), ("Connection", "keep-alive")).json() == [3]
    failed = add(server, 1000, "both")
    assert (failed.status, failed.json()["code"]) == (500, "model_failed")
    assert add(server, 4, "both; end").json() == [7]
    assert (add(server, 1, "both").status, add(server, 1, "both").json()["code"]) == (400, "unknown_sequence")
    assert add(server, 1, None).json()["code"] == "sequence_required"


@pytest.mark.parametrize(
    "more", [(), (("Upgrade", "nothing"), ("Connection", "keep-alive"))], ids=["direct", "asgi"]
)
def test_a_request_is_of_one_sequence(server: InProcessGrpcServer, more: tuple[tuple[str, str], ...]) -> None:
    """Two headers are refused by both paths, be they the same, and neither sequence moves on."""
    for first, second in (("one; start", "other; start"), ("one; start", "one; start")):
        refused = add(server, 1, first, ("Stoker-Sequence", second), *more)
        assert (refused.status, refused.json()["code"]) == (400, "bad_request")
        assert "has to come once" in refused.json()["message"]
    assert [add(server, 1, name).json()["code"] for name in ("one", "other")] == ["unknown_sequence"] * 2


def test_a_long_body_is_one_of_a_sequence_too(server: InProcessGrpcServer) -> None:
    """It is the row of its request, however long."""
    text = b'{"data": [5], "more": "%b"}' % (b"x" * (MAX_BODY_BYTES - 100))
    for place, total in enumerate((5, 10)):
        headers = [("Stoker-Sequence", "long; start" if not place else "long")]
        assert server.ask("POST", "/api/v1/service/adds/score", headers, text).json() == [total]


def test_the_python_client_sends_sequences_to_scripts(server: InProcessGrpcServer) -> None:
    """By the same keywords as to models; an error that says that there is none has its own class."""
    with Client(f"http://127.0.0.1:{server.port}/api/v1/service/adds/score") as client:
        client.score([1], sequence_id=5, sequence_start=True)
        assert client.score([2], sequence_id=5, sequence_end=True) == [3]
        with pytest.raises(UnknownSequence):
            client.score([2], sequence_id=5)
    with Client(f"http://127.0.0.1:{server.port}/api/v1/service/counts/score") as client:
        for start, numbers in ((True, [1, 2]), (False, [3, 4])):
            with client.stream(2, sequence_id="mine", sequence_start=start) as pieces:
                assert list(pieces) == numbers


def test_pieces_go_on_from_the_state_too(server: InProcessGrpcServer) -> None:
    """Over HTTP by the header, and over gRPC by Triton's parameters."""
    path, header = "/api/v1/service/counts/score", ("Stoker-Sequence", "9; start")
    assert server.ask("POST", path, [header], b"2").body == b"1\n2\n"
    assert server.ask("POST", path, [("Stoker-Sequence", "9")], b"1").body == b"3\n"
    assert server.ask("POST", path, [], b"1").json()["code"] == "sequence_required"
    pieces: list[Any] = []
    with grpc_triton.InferenceServerClient(server.address) as client:
        given = grpc_triton.InferInput("raw_data", [1], "BYTES")
        given.set_data_from_numpy(np.array([b"1"], object))
        client.start_stream(lambda result, error: pieces.append(error or result.as_numpy("piece").item()))
        client.async_stream_infer("counts", [given], sequence_id=9, sequence_end=True)
        client.async_stream_infer("counts", [given], sequence_id=9)
        client.stop_stream()
    # Answers and errors come on ways of their own.
    (refused,) = [piece for piece in pieces if isinstance(piece, InferenceServerException)]
    assert "no such sequence" in str(refused)
    assert b"4" in pieces


def test_generating_goes_on_from_the_state(server: InProcessGrpcServer) -> None:
    """Triton's generate extension takes the header; a piece too many is an error, which has changed nothing."""

    def generate(path: str, sequence: str, body: bytes) -> Answer:
        return server.ask("POST", f"/v2/models/counts/{path}", [("Stoker-Sequence", sequence)], body)

    assert generate("generate", "gen; start", b"1").json()["piece"] == 1
    assert generate("generate_stream", "gen", b"2").body.count(b"data: ") == 2
    for _ in range(3):
        refused = generate("generate", "gen", b"2")
        assert (refused.status, "exactly 1 response" in refused.json()["error"]) == (400, True)
    assert generate("generate", "gen; end", b"1").json()["piece"] == 4
    assert generate("generate", "gen", b"1").json()["code"] == "unknown_sequence"


def test_rows_come_by_triton_s_parameters(server: InProcessGrpcServer) -> None:
    """Over HTTP and gRPC, in one sequence: a decorated script is a model with tensors."""
    x = np.ones((1, 1), np.float32)
    with (
        triton.InferenceServerClient(f"127.0.0.1:{server.port}") as http,
        grpc_triton.InferenceServerClient(server.address) as grpc,
    ):
        by_http = triton.InferInput("data", [1, 1], "FP32").set_data_from_numpy(x)
        by_grpc = grpc_triton.InferInput("data", [1, 1], "FP32").set_data_from_numpy(x)
        request_parameters: dict[str, Any] = {"sequence_id": "mine"}
        answers = [
            http.infer("sums", [by_http], sequence_start=True, **request_parameters),
            grpc.infer("sums", [by_grpc], **request_parameters),
            http.infer("sums", [by_http], sequence_end=True, **request_parameters),
        ]
        assert [answer.as_numpy("result").item() for answer in answers] == [1, 2, 3]
        with pytest.raises(InferenceServerException, match="no such sequence"):
            grpc.infer("sums", [by_grpc], **request_parameters)


@pytest.mark.parametrize("sequence", ["7", "ann", "x" * 128])
def test_scripts_get_the_sequence_of_a_request(server: InProcessGrpcServer, sequence: str) -> None:
    """As a text, if they ask for it; callers who call theirs by a number get its digits."""
    header = ("Stoker-Sequence", f"{sequence}; start")
    for name, content, answer in (
        ("named", b"{}", {"id": sequence}),
        ("named_rows", b'{"data": [1]}', [sequence]),
    ):
        got = server.ask("POST", f"/api/v1/service/{name}/score", [header], content)
        assert got.json() == answer


@pytest.mark.usefixtures("own_script")
def test_an_answer_that_json_cannot_hold_has_moved_its_sequence(tmp_path: Path) -> None:
    """As the page on sequences says: the row was run, and binary callers would have got its answer."""
    runtimes = {"overflows": loaded(tmp_path / "overflows", OVERFLOWS)}
    with InProcessServer(runtimes, non_finite="error") as running:
        path = "/api/v1/service/overflows/score"
        answers = [
            running.ask("POST", path, [("Stoker-Sequence", sequence)], b'{"data": [0]}')
            for sequence in ("7; start", "7", "7")
        ]
    assert [answer.status for answer in answers] == [200, 500, 200]
    assert (answers[1].json()["code"], answers[2].json()) == ("non_finite_output", [3.0])
