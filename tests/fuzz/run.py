"""Fuzz the decoders and a running server for some minutes: `python -m tests.fuzz.run --minutes 10`.

What must hold for every body: a decoder gives what it promises or refuses it as the caller's fault, within two
seconds and without large allocations; the server answers below 500 within ten, and its processes do not grow beyond
three times the body limit. It ends with the first body for which that does not hold, as small as it could be made.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from tests.contract.protocol_models import DATATYPES, DEPLOYMENT, write_models
from tests.fuzz.bodies import (
    Info,
    array_bodies,
    compressed,
    infer_requests,
    predict_bodies,
    scoring_bodies,
)
from tests.live_server import LiveServer
from tests.tiny_models import BODY_SCRIPT, write_script

from stoker.errors import RequestError
from stoker.gateway.encodings import PIECE_BYTES, inflater_for
from stoker.gateway.infer_dialect import InferDialect
from stoker.tensors import ModelTensors, Signature, TensorInfo, TensorSpec
from stoker.wire.array_bodies import decode_npy, decode_octets
from stoker.wire.envelope import RequestHead, ScriptAnswer, ScriptRequest
from stoker.wire.oip import decode_infer
from stoker.wire.packed import pack, unpack
from stoker.wire.scoring import ScoringDecoder
from stoker.wire.tensor_json import decode_tensors
from stoker.wire.tfs import decode_examples, decode_predict

BODY_LIMIT_MB: Final = 16
MEMORY_LIMIT_BYTES: Final = 3 * BODY_LIMIT_MB << 20
DECODER_LIMIT_BYTES: Final = 64 << 20

DTYPES: Final = {
    "FP32": "float32",
    "INT8": "int8",
    "UINT64": "uint64",
    "BOOL": "bool",
    "FP16": "float16",
    "INT64": "int64",
    "BYTES": "string",
}
KINDS: Final[dict[str, list[Info]]] = {
    "scores": [("x", "FP32", (-1, 4))],
    "pair": [("a", "FP32", (-1, 2)), ("b", "INT64", (-1, 3))],
    "every": [(f"in_{name}", name, (-1, 2)) for name in DATATYPES],
    "texts": [("words", "BYTES", (-1,))],
    "scaled": [("x", "FP32", (3,)), ("k", "FP32", ())],
    "bytes": [("image_bytes", "BYTES", (-1,))],
    "sequence": [("tokens", "INT64", (-1, -1))],
    "padded": [("tokens", "INT64", (-1, -1))],
    "script": [("x", "FP32", (-1, 4))],
}
"""The inputs of the models that the server has."""
OUTPUTS: Final = {
    "scores": ["y"],
    "pair": ["sums", "twice"],
    "every": ["out_FP16", "out_BOOL", "out_FP64"],
    "texts": ["same"],
    "scaled": ["y", "again"],
    "bytes": ["copy_bytes"],
    "sequence": ["last", "doubled"],
    "padded": ["count"],
    "script": ["result"],
}
ALONE: Final[list[list[Info]]] = [
    [("x", "FP32", (-1, 2))],
    [("x", "INT8", (-1, -1))],
    [("x", "UINT64", (-1,))],
    [("x", "BOOL", (-1,))],
    [("x", "FP16", ())],
    [("words", "BYTES", (-1, -1))],
    [("a", "FP32", (-1, 2)), ("b", "INT64", (-1,))],
]
"""The inputs of models that only decoders know."""


def tensors_of(infos: Sequence[Info]) -> ModelTensors:
    """A model with these inputs."""
    inputs = tuple(TensorInfo(name, DTYPES[datatype], shape) for name, datatype, shape in infos)
    outputs = (TensorInfo("y", "float32", (-1,)),)
    return ModelTensors(inputs, outputs, batched=all(info.shape[:1] == (-1,) for info in inputs))


TENSORS: Final = [tensors_of(infos) for infos in ALONE]
SIGNATURES: Final = [
    Signature(tuple(TensorSpec(*spec) for spec in specs), (TensorSpec("y", "float32", ()),))
    for specs in (
        [("x", "float32", (2,))],
        [("x", "int8", ())],
        [("x", "uint64", (2, 2))],
        [("x", "bool", (1,))],
        [("a", "float32", (2,)), ("b", "int64", ())],
    )
]


def attempt(decode: Callable[[], Any]) -> Any:
    """Decode; None if the body was refused, which is right too."""
    started_s = time.monotonic()
    try:
        decoded = decode()
    except RequestError:
        decoded = None
    assert time.monotonic() - started_s < 2, "that took too long"
    return decoded


def check_arrays(arrays: dict[str, np.ndarray], tensors: ModelTensors) -> None:
    """Assert that inputs are what the model takes, and that they survive being packed."""
    infos = {info.name: info for info in tensors.inputs}
    assert set(arrays) == set(infos)
    for name, array in arrays.items():
        assert infos[name].fits(array.shape), (name, array.shape)
        assert array.dtype == (object if infos[name].dtype == "string" else infos[name].dtype)
    again = unpack(pack(arrays))
    for name, array in arrays.items():
        assert again[name].shape == array.shape
        assert pack({name: again[name]}) == pack({name: array})


def check_infer(example: tuple[bytes, str | None]) -> None:
    body, length = example
    for tensors in TENSORS:

        def decode(tensors: ModelTensors = tensors) -> Any:
            dialect = InferDialect.for_length(None if length is None else length.encode())
            return decode_infer("m", tensors, body, dialect._json_bytes)

        request = attempt(decode)
        if request is not None:
            check_arrays(request.inputs, tensors)


def check_predict(body: bytes) -> None:
    for tensors in TENSORS:
        request = attempt(lambda tensors=tensors: decode_predict(tensors, body))
        if request is not None:
            check_arrays(request.inputs, tensors)
        arrays = attempt(lambda tensors=tensors: decode_examples(tensors, body))
        if arrays is not None:
            check_arrays(arrays, tensors)


def check_scoring(body: bytes) -> None:
    for signature in SIGNATURES:
        rows = attempt(lambda signature=signature: ScoringDecoder(signature).decode(body))
        if rows is not None:
            assert [array.shape[1:] for array in rows] == [spec.shape for spec in signature.inputs]
    for tensors in TENSORS:
        arrays = attempt(lambda tensors=tensors: decode_tensors(body, tensors))
        if arrays is not None:
            check_arrays(arrays, tensors)


def check_array(example: tuple[bytes, dict[str, str]]) -> None:
    body, headers = example
    dtype, shape = headers.get("x-stoker-dtype"), headers.get("x-stoker-shape")

    def decoded(info: TensorInfo) -> list[np.ndarray | None]:
        return [
            attempt(lambda: decode_npy(body, info)),
            attempt(lambda: decode_octets(body, info, dtype, shape)),
        ]

    for tensors in TENSORS:
        info = tensors.inputs[0]
        for array in decoded(info):
            if array is not None:
                check_arrays({info.name: array}, ModelTensors((info,), (), batched=False))


def check_inflation(example: tuple[bytes, str]) -> None:
    body, coding = example
    inflater = inflater_for([coding.encode()])
    assert inflater is not None

    def inflate() -> int:
        total = 0
        for start in range(0, len(body), 1000):
            for piece in inflater.feed(body[start : start + 1000]):
                assert 0 < len(piece) <= PIECE_BYTES
                total += len(piece)
                if total > BODY_LIMIT_MB << 20:
                    return total
        inflater.finish()
        return total

    attempt(inflate)


texts = st.text(st.characters(max_codepoint=255), max_size=9)
heads = st.builds(RequestHead, texts, texts, texts, st.lists(st.tuples(texts, texts), max_size=4), texts)
requests = st.builds(
    ScriptRequest, st.binary(max_size=40), st.binary(max_size=99), st.integers(0, 1 << 40), st.none() | heads
)
answers = st.builds(
    ScriptAnswer,
    st.binary(max_size=99),
    st.integers(0, 999),
    st.binary(max_size=40),
    st.booleans(),
    st.none() | st.integers(0, 1 << 62),
)


def check_envelope(envelope: ScriptRequest | ScriptAnswer) -> None:
    """What is packed comes back, whatever it holds."""
    assert type(envelope).unpack(envelope.pack()) == envelope


class Server:
    """A running server and one connection to it."""

    def __init__(self, live: LiveServer) -> None:
        self._live = live
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{live.port}", timeout=10, trust_env=False)
        self._key = {"authorization": f"Bearer {live.key}"}
        self._pids = [*live.frontend_pids(), *live.device_pids()]
        self._since: dict[int, int] = {}
        self.worst_bytes = 0
        self.statuses: dict[int, int] = {}

    def begin(self) -> None:
        """Measure growth from here on."""
        self._since = {pid: _rss_bytes(pid) for pid in self._pids}

    def check(self, example: tuple[str, bytes, dict[str, str]]) -> None:
        """Post a body; it has to be answered below 500 by a server that does not grow."""
        path, body, headers = example
        answer = self._http.post(path, content=body, headers={**self._key, **headers})
        self.statuses[answer.status_code] = self.statuses.get(answer.status_code, 0) + 1
        # A timeout of microseconds that the request itself asks for is 504 by contract.
        assert answer.status_code < 500 or (answer.status_code == 504 and b"timeout" in body), answer.text
        if path != "/score":
            answer.json() if answer.headers["content-type"] == "application/json" else None

    def check_memory(self) -> None:
        """No process has grown beyond the limit, and none was started anew."""
        assert set(self._pids) == {*self._live.frontend_pids(), *self._live.device_pids()}, (
            "a process has died"
        )
        for pid in self._pids:
            grown = _rss_bytes(pid) - self._since[pid]
            self.worst_bytes = max(self.worst_bytes, grown)
            assert grown <= MEMORY_LIMIT_BYTES, f"process {pid} has grown by {grown >> 20} MiB"


def _rss_bytes(pid: int) -> int:
    # The most it ever had, so that nothing is missed between two looks.
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0]) << 10


@st.composite
def posts(draw: st.DrawFn) -> tuple[str, bytes, dict[str, str]]:
    """A request to the server: path, body, headers."""
    model = draw(st.sampled_from(list(KINDS)))
    headers: dict[str, str] = {}
    kind = draw(st.sampled_from(["infer", "predict", "score", "array"]))
    if kind == "infer":
        body, length = draw(infer_requests(KINDS[model], OUTPUTS[model]))
        path = f"/v2/models/{model}/infer"
        if length is not None:
            headers["inference-header-content-length"] = length.encode("ascii", "ignore").decode().strip()
    elif kind == "predict":
        verb = draw(st.sampled_from(["predict", "classify", "regress"]))
        path, body = f"/v1/models/{model}:{verb}", draw(predict_bodies(KINDS[model]))
    elif kind == "score":
        path, body = f"/api/v1/service/{model}/score", draw(scoring_bodies(KINDS[model]))
    else:
        body, headers = draw(array_bodies(KINDS[model][0]))
        path = f"/api/v1/service/{model}/score"
    if not draw(st.integers(0, 5)):
        body, coding = draw(compressed(st.just(body)))
        headers = {**headers, "content-encoding": coding}
    if draw(st.booleans()):
        headers = {
            **headers,
            "accept-encoding": draw(st.sampled_from(["gzip", "deflate;q=0.5", "br", "gzip;q=x"])),
        }
    if model == "script":
        # What a script makes of a body is its own affair: it may fail.
        path = "/v2/models/script/infer"
    return path, body, headers


def fuzz(
    name: str, strategy: st.SearchStrategy[Any], check: Callable[[Any], None], duration_s: float, start: int
) -> int:
    """Check examples for some time; returns how many."""
    until_s, count = time.monotonic() + duration_s, 0

    def one(example: Any) -> None:
        nonlocal count
        count += 1
        check(example)

    number = start
    while time.monotonic() < until_s:
        run = settings(
            max_examples=300,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )(seed(number)(given(strategy)(one)))
        run()
        number += 1
    print(f"{name:10} {count:8} bodies in {duration_s:.0f} s", flush=True)
    return count


def main() -> None:
    """Fuzz each decoder by itself, then a server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    share_s = options.minutes * 60 / 11
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    infos = st.sampled_from(ALONE)
    decoders: list[tuple[str, st.SearchStrategy[Any], Callable[[Any], None]]] = [
        ("v2", infos.flatmap(lambda infos: infer_requests(infos, ["y"])), check_infer),
        ("v1", infos.flatmap(predict_bodies), check_predict),
        ("scoring", infos.flatmap(scoring_bodies), check_scoring),
        ("arrays", infos.flatmap(lambda infos: array_bodies(infos[0])), check_array),
        ("inflation", compressed(st.binary(max_size=2000)), check_inflation),
        ("envelopes", requests | answers, check_envelope),
    ]
    for name, strategy, check in decoders:
        fuzz(name, strategy, check, share_s, options.seed)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) - before
        assert grown <= DECODER_LIMIT_BYTES, f"{name} took {grown >> 20} MiB"
    with tempfile.TemporaryDirectory() as scratch:
        deployment = Path(scratch) / "deployment"
        write_models(deployment / "models")
        write_script(deployment / "models" / "body", BODY_SCRIPT)
        file = deployment / "deployment.yaml"
        file.write_text(DEPLOYMENT.replace("max_body_mb: 1", f"max_body_mb: {BODY_LIMIT_MB}"))
        with LiveServer(Path(scratch), "--config", file) as live:
            server = Server(live)
            # What is loaded and kept with the first requests is not theirs.
            fuzz("warm-up", posts(), server.check, min(10, share_s), options.seed)
            server.begin()
            for part in range(5):
                fuzz("server", posts(), server.check, share_s, options.seed + 1000 * part)
                server.check_memory()
            print(f"the server's processes grew by at most {server.worst_bytes >> 20} MiB; {server.statuses}")


if __name__ == "__main__":
    sys.exit(main())
