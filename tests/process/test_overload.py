"""Several times a device's load: early refusals, answers in time, and the state afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.http.raw_http import Answer, AsyncConnection
from tests.live_server import LiveServer, wait_until
from tests.process.callers import Question, scored
from tests.process.conftest import Serve
from tests.tiny_models import write_script

# 10 rows a second in full batches: so slow that it matters little what the machine does beside it.
SCRIPT = """
import time
import stoker

def init(): ...

@stoker.batched(shape=(4,))
def run(data):
    time.sleep(0.2)
    return data * 2
"""
DEPLOYMENT = """
models:
  - path: {script}
    name: slow
    max_batch_rows: 2
    target_ms: 1200
    late: refuse
"""
WAVES, WAVE, PAUSE_S = 30, 6, 0.025


async def _ask(port: int, question: Question) -> Answer:
    async with await AsyncConnection.open(port) as connection:
        return await connection.ask(question.message)


async def _flood(server: LiveServer) -> list[tuple[Question, Answer]]:
    """Ask in waves, whether there are answers or not."""
    ask, tasks = scored(server.key), []
    for wave in range(WAVES):
        questions = [ask(wave * WAVE + number) for number in range(WAVE)]
        tasks += [(one, asyncio.create_task(_ask(server.port, one))) for one in questions]
        await asyncio.sleep(PAUSE_S)
    return [(question, await task) for question, task in tasks]


def test_overloaded_server_refuses_late_requests_at_once(serve: Serve, tmp_path: Path) -> None:
    """Everybody is answered: most of those who are taken in time, and others with when to come back."""
    deployment = tmp_path / "deployment.yaml"
    deployment.write_text(DEPLOYMENT.format(script=write_script(tmp_path / "slow", SCRIPT)))
    server = serve("--config", deployment, "--frontends", "1", "--device", "cpu")
    # From these it learns what its batches take.
    for rows in (1, 2, 1, 2):
        assert server.score(*[[0, 0, 0, 0]] * rows).status == 200
    before = server.metric("stoker_answers_total", model="slow", tier="normal")

    outcomes = asyncio.run(_flood(server))

    by_status = {status: [one for one in outcomes if one[1].status == status] for status in (200, 503, 504)}
    assert sum(map(len, by_status.values())) == len(outcomes) == WAVES * WAVE
    assert all(answer.json() == question.expected for question, answer in by_status[200])
    refused = [answer for _, answer in by_status[503]]
    assert len(refused) > len(outcomes) / 4
    for answer in refused:
        assert answer.error_code() == "overloaded"
        assert int(answer.header("retry-after") or 0) >= 1
        assert int(answer.header("retry-after-ms") or 0) >= 1
        assert (answer.header("stoker-refused") or "").startswith("reason=target, expected-ms=")
    counted = server.metric("stoker_refusals_total", model="slow", reason="target", tier="normal")
    assert counted == len(refused)

    def answers() -> float:
        return server.metric("stoker_answers_total", model="slow", tier="normal")

    # Batches are counted behind their answers.
    assert by_status[200]
    wait_until(lambda: answers() - before >= len(by_status[200]), "all answers are counted")
    in_time = server.metric("stoker_in_target_total", model="slow", tier="normal")
    assert in_time > answers() / 2
    # Nobody is left, so who comes now waits for nobody.
    assert server.score([1, 2, 3, 4]).status == 200
