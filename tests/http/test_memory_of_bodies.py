"""Refused requests take at most three times the largest body of a frontend's memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import httpx
import pytest
from tests.contract.protocol_models import DEPLOYMENT, write_models
from tests.live_server import LiveServer, free_port
from tests.patience import PROGRAM_S
from tests.tiny_models import BODY_SCRIPT, write_script

from stoker.gateway.grpc.messages import SERVICE

LIMIT_BYTES = 100 << 20
NOISE_BYTES = 48 << 20
"""Memory of other work of the process, such as counting, and freed memory that malloc keeps, up to 64 MiB."""
VALUES = 1 << 22
SCORE, PREDICT = "/api/v1/service/scores/score", "/v1/models/scores:predict"
INFER, GRPC = "/v2/models/scores/infer", f"/{SERVICE}/ModelInfer"
ROWS = b'{"instances": ['
TYPED_BYTES = (8 << 20) - 200
TENSOR = b'{"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": ['


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LiveServer, int]]:
    """One frontend with gRPC, bodies of 100 MiB."""
    scratch, grpc_port = tmp_path_factory.mktemp("memory"), free_port()
    deployment = scratch / "deployment"
    write_models(deployment / "models")
    write_script(deployment / "models" / "body", BODY_SCRIPT)
    file = deployment / "deployment.yaml"
    file.write_text(DEPLOYMENT.replace("max_body_mb: 1", f"max_body_mb: {LIMIT_BYTES >> 20}"))
    with LiveServer(scratch, "--config", file, "--grpc-port", str(grpc_port)) as served:
        yield served, grpc_port


def filled(begin: bytes, unit: bytes, end: bytes, count: int = LIMIT_BYTES) -> bytes:
    """As many of these units between begin and end as a body may have, or so many."""
    room = LIMIT_BYTES - len(begin) - len(end)
    return begin + unit * min(count, room // len(unit)) + end


def varint(number: int) -> bytes:
    """A number as protocol buffers write it."""
    groups = []
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*groups, number])


def field(number: int, content: bytes) -> bytes:
    """A field of a message that has a length."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def typed(shape: bytes, numbers: bytes) -> bytes:
    """A message for the model `every` with one of its inputs, as typed contents."""
    contents = field(5, field(5, numbers)) if numbers else b""
    tensor = field(1, b"in_UINT64") + field(2, b"UINT64") + field(3, shape) + contents
    return field(1, b"every") + field(5, tensor)


def peak_bytes(pid: int, key: str) -> int:
    """A figure of a process's memory."""
    return int(Path(f"/proc/{pid}/status").read_text().partition(f"{key}:")[2].split()[0]) << 10


CASES: dict[str, tuple[str, Callable[[], bytes], int]] = {
    "too many numbers": (INFER, lambda: filled(TENSOR, b"0,", b"0]}]}"), 413),
    "as many lists as are read": (PREDICT, lambda: filled(ROWS, b"[],", b"0]}", VALUES // 2 - 9), 400),
    "as many objects as are read": (PREDICT, lambda: filled(ROWS, b'{"a":1},', b"0]}", VALUES // 7 - 9), 400),
    "as many strings as are read": (
        PREDICT,
        lambda: filled(ROWS, '"é",'.encode(), b"0]}", VALUES // 3 - 9),
        400,
    ),
    "rows": (SCORE, lambda: filled(b'{"data": [', b"[0,0,0,0],", b"[0]]}"), 413),
    "a text": (PREDICT, lambda: filled(ROWS + b'"', b"a", b'"]}'), 400),
    "a wide text": (PREDICT, lambda: filled(ROWS + b'"', b"a", '😀"]}'.encode()), 413),
    "base64": ("/v1/models/texts:predict", lambda: filled(ROWS + b'{"b64": "', b"A", b'!"}]}'), 400),
    "sizes": (GRPC, lambda: typed(b"\x01" * TYPED_BYTES, b""), 0),
    "numbers of one byte": (
        GRPC,
        lambda: typed(varint(TYPED_BYTES // 2) + varint(2), b"\x01" * TYPED_BYTES),
        0,
    ),
    "parts of two bytes": (GRPC, lambda: b"\x3a\x00" * (LIMIT_BYTES // 2), 0),
}
"""Path, body and status of each; gRPC has none of HTTP."""


@pytest.mark.parametrize("case", CASES)
def test_a_refused_request_takes_at_most_three_times_the_limit(
    server: tuple[LiveServer, int], case: str
) -> None:
    """However its bytes multiply; the frontend goes on."""
    live, grpc_port = server
    path, make, status = CASES[case]
    (pid,), body = live.frontend_pids(), make()
    before = peak_bytes(pid, "VmRSS")
    # The kernel begins anew to note the most that the process has had.
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    key = {"authorization": f"Bearer {live.key}"}
    if path == GRPC:
        options = [("grpc.max_send_message_length", -1)]
        channel = grpc.insecure_channel(f"127.0.0.1:{grpc_port}", options=options)
        with channel, pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary(path)(body, metadata=tuple(key.items()), timeout=PROGRAM_S)
        codes = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED)
        assert refused.value.code() in codes, refused.value.details()
    else:
        url = f"http://127.0.0.1:{live.port}{path}"
        answer = httpx.post(url, content=body, headers=key, timeout=PROGRAM_S, trust_env=False)
        assert answer.status_code == status, answer.text[:200]
    grown = peak_bytes(pid, "VmHWM") - before
    assert grown <= 3 * LIMIT_BYTES + NOISE_BYTES, f"{grown >> 20} MiB"
    assert live.frontend_pids() == [pid]
