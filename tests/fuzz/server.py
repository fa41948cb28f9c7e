"""A running server under requests of all protocols, and what must hold for its answers and its memory."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import grpc
import httpx
from hypothesis import strategies as st
from tests.contract.protocol_models import DATATYPES
from tests.fuzz.bodies import (
    Info,
    array_bodies,
    compressed,
    infer_requests,
    predict_bodies,
    scoring_bodies,
)
from tests.fuzz.decoders import BODY_LIMIT_MB
from tests.fuzz.messages import infer_messages
from tests.live_server import LiveServer

from stoker.gateway.grpc.messages import SERVICE

__all__ = ["Server", "posts"]

MEMORY_LIMIT_BYTES: Final = 3 * BODY_LIMIT_MB << 20
TIMEOUT_S: Final = 10
GRPC: Final = f"/{SERVICE}/ModelInfer"
FAULTS: Final = ("INTERNAL", "UNKNOWN", "UNAVAILABLE", "DATA_LOSS")
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


class Server:
    """A running server, one connection of HTTP to it, and one of gRPC."""

    def __init__(self, live: LiveServer, grpc_port: int) -> None:
        self._live = live
        self._http = httpx.Client(
            base_url=f"http://127.0.0.1:{live.port}", timeout=TIMEOUT_S, trust_env=False
        )
        channel = grpc.insecure_channel(f"127.0.0.1:{grpc_port}")
        self._infer = channel.unary_unary(GRPC)
        self._key = {"authorization": f"Bearer {live.key}"}
        self._pids = [*live.frontend_pids(), *live.device_pids()]
        self._since: dict[int, int] = {}
        self.worst_bytes = 0
        self.statuses: dict[object, int] = {}

    def begin(self) -> None:
        """Measure growth from here on."""
        self._since = {pid: _rss_bytes(pid) for pid in self._pids}

    def check(self, example: tuple[str, bytes, dict[str, str]]) -> None:
        """Post a body; it has to be answered below 500 by a server that does not grow."""
        path, body, headers = example
        if path == GRPC:
            self._check_call(body)
            return
        answer = self._http.post(path, content=body, headers={**self._key, **headers})
        self.statuses[answer.status_code] = self.statuses.get(answer.status_code, 0) + 1
        # A timeout of microseconds that the request itself asks for is 504 by contract.
        assert answer.status_code < 500 or (answer.status_code == 504 and b"timeout" in body), answer.text
        if path != "/score":
            answer.json() if answer.headers["content-type"] == "application/json" else None

    def _check_call(self, message: bytes) -> None:
        status, details = "OK", ""
        try:
            self._infer(message, metadata=tuple(self._key.items()), timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            status, details = error.code().name, error.details()
        self.statuses[status] = self.statuses.get(status, 0) + 1
        assert status not in FAULTS, details
        assert status != "DEADLINE_EXCEEDED" or b"timeout" in message, details

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


def _scoring_path(draw: st.DrawFn, model: str) -> str:
    return draw(st.sampled_from([f"/api/v1/service/{model}/score", f"/predictions/{model}"]))


@st.composite
def posts(draw: st.DrawFn) -> tuple[str, bytes, dict[str, str]]:
    """A request to the server: path, body, headers."""
    model = draw(st.sampled_from(list(KINDS)))
    headers: dict[str, str] = {}
    kind = draw(st.sampled_from(["infer", "predict", "score", "array", "grpc"]))
    if kind == "grpc":
        return GRPC, draw(infer_messages(KINDS[model], OUTPUTS[model], model)), {}
    if kind == "infer":
        body, length = draw(infer_requests(KINDS[model], OUTPUTS[model]))
        path = f"/v2/models/{model}/infer"
        if length is not None:
            headers["inference-header-content-length"] = length.encode("ascii", "ignore").decode().strip()
    elif kind == "predict":
        verb = draw(st.sampled_from(["predict", "classify", "regress"]))
        path, body = f"/v1/models/{model}:{verb}", draw(predict_bodies(KINDS[model]))
    elif kind == "score":
        path, body = _scoring_path(draw, model), draw(scoring_bodies(KINDS[model]))
    else:
        body, headers = draw(array_bodies(KINDS[model][0]))
        path = _scoring_path(draw, model)
    if not draw(st.integers(0, 5)):
        body, coding = draw(compressed(st.just(body)))
        headers = {**headers, "content-encoding": coding}
    if draw(st.booleans()):
        headers = {
            **headers,
            "accept-encoding": draw(st.sampled_from(["gzip", "deflate;q=0.5", "br", "gzip;q=x", "gzip;q=."])),
        }
    if model == "script":
        # A script may fail with any body.
        path = "/v2/models/script/infer"
    return path, body, headers
