"""Good and bad requests in flight together: each has its own right answer."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator, Sequence

import pytest
from tests.http.raw_http import Answer, AsyncConnection, request, rows_body, scoring
from tests.live_server import PRIMARY, LiveServer
from tests.tiny_models import BATCHED_SCRIPT, PICKY_LIMIT, RAISE, write_picky, write_script

_BAD: dict[str, tuple[bytes, int]] = {
    "malformed": (b'{"data": [[1, 2', 400),
    "NaN": (b'{"data": [[NaN, 2, 3, 4]]}', 400),
    "not UTF-8": (b'{"data": [["\xff", 2, 3, 4]]}', 400),
    "too short": (rows_body([1, 2, 3]), 422),
    "ragged": (rows_body([1, 2, 3, 4], [1, 2, 3]), 422),
    "a string": (b'{"data": [["a", 2, 3, 4]]}', 422),
    "no data": (b"{}", 422),
    "poison": (b"", 500),
    "poison among good rows": (b"", 500),
}
_POISON = {"onnx": PICKY_LIMIT, "batched": RAISE}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """Two models that triple rows and fail on a certain one: ONNX at run time, and a batched script that raises."""
    scratch = tmp_path_factory.mktemp("mixed")
    onnx = write_picky(scratch / "onnx.onnx")
    script = write_script(scratch / "batched", BATCHED_SCRIPT)
    deployment = scratch / "deployment.yaml"
    # Waiting for company makes sure that good and bad rows share batches.
    models = f"  - path: {onnx}\n    max_delay_ms: 20\n  - path: {script}\n    max_delay_ms: 20\n"
    deployment.write_text(f"frontends: 2\nmodels:\n{models}")
    with LiveServer(scratch, "--config", deployment) as running:
        yield running


async def _ask_all(port: int, messages: Sequence[bytes], connections: int) -> list[Answer]:
    """Send every message, `connections` at a time; answers in the order of the messages."""
    queue = list(enumerate(messages))[::-1]
    answers: dict[int, Answer] = {}

    async def ask() -> None:
        async with await AsyncConnection.open(port) as connection:
            while queue:
                number, message = queue.pop()
                answers[number] = await connection.ask(message)

    await asyncio.gather(*(ask() for _ in range(connections)))
    return [answers[number] for number in range(len(messages))]


def _good_row(number: int) -> list[float]:
    return [number % 7, number, number / 4, -number]


@pytest.mark.anyio
@pytest.mark.parametrize("model", ["onnx", "batched"])
async def test_two_hundred_mixed_requests_have_each_their_own_answer(server: LiveServer, model: str) -> None:
    """Of 200 requests in flight at once, every good one is right and every bad one gets its own error."""
    path = f"/api/v1/service/{model}/score"
    kinds = ["good", "good of many rows", "no key", "no such service", "health", *_BAD]
    order = [kinds[number % len(kinds)] for number in range(200)]
    random.Random(5).shuffle(order)
    poison = [float(_POISON[model]), 1, 1, 1]
    messages = []
    for number, kind in enumerate(order):
        match kind:
            case "good":
                message = scoring(path, PRIMARY, rows_body(_good_row(number)))
            case "good of many rows":
                message = scoring(path, PRIMARY, rows_body(*(_good_row(number + more) for more in range(9))))
            case "no key":
                message = request("POST", path, [], rows_body(_good_row(number)))
            case "no such service":
                message = scoring("/api/v1/service/nobody/score", PRIMARY, rows_body(_good_row(number)))
            case "health":
                message = request("GET", "/v2/health/live")
            case "poison":
                message = scoring(path, PRIMARY, rows_body(poison))
            case "poison among good rows":
                message = scoring(path, PRIMARY, rows_body(_good_row(1), poison, _good_row(2)))
            case _:
                message = scoring(path, PRIMARY, _BAD[kind][0])
        messages.append(message)

    answers = await _ask_all(server.port, messages, connections=200)

    statuses = {"good": 200, "good of many rows": 200, "no key": 401, "no such service": 404, "health": 200}
    statuses |= {kind: status for kind, (_, status) in _BAD.items()}
    for number, (kind, answer) in enumerate(zip(order, answers, strict=True)):
        assert answer.status == statuses[kind], f"{number} {kind}: {answer.body!r}"
        match kind:
            case "good":
                assert answer.json() == _tripled([_good_row(number)])
            case "good of many rows":
                assert answer.json() == _tripled([_good_row(number + more) for more in range(9)])
            case "health":
                assert answer.json() == {"live": True}
            case _:
                fields = {"message", "code", "error_id"} if answer.status == 500 else {"message", "code"}
                assert set(answer.json()) == fields
    assert server.pids(), "the server lives"


def _tripled(rows: list[list[float]]) -> list[list[float]]:
    return [[3 * value for value in row] for row in rows]


@pytest.mark.anyio
@pytest.mark.parametrize("bad", ["a row that fails", "a row of the wrong width"])
@pytest.mark.parametrize("model", ["onnx", "batched"])
async def test_bad_rows_harm_no_good_one(server: LiveServer, model: str, bad: str) -> None:
    """One bad row among 15 good ones in flight, 20 rounds: of 300 good requests none fails (of others, up to all)."""
    path = f"/api/v1/service/{model}/score"
    row = [float(_POISON[model]), 1, 1, 1] if bad == "a row that fails" else [1.0, 2.0, 3.0]
    failed, bad_statuses = [], []
    batches_before = server.metric("stoker_batch_rows_count", model=model)
    for round_number in range(20):
        rows = [_good_row(100 * round_number + number) for number in range(15)]
        rows.insert(round_number % 16, row)
        messages = [scoring(path, PRIMARY, rows_body(one)) for one in rows]
        answers = await _ask_all(server.port, messages, connections=16)
        for one, answer in zip(rows, answers, strict=True):
            if one is row:
                bad_statuses.append(answer.status)
            elif answer.status != 200 or json.loads(answer.body) != _tripled([one]):
                failed.append((one, answer))

    assert failed == []
    assert set(bad_statuses) == {500 if bad == "a row that fails" else 422}
    assert len(bad_statuses) == 20
    batches = server.metric("stoker_batch_rows_count", model=model) - batches_before
    assert batches < 150, f"{batches} batches: the rows of a round did not run together"
