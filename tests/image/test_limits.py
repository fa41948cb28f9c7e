"""The limits of a container: one of a machine's cores, and memory that is not exceeded with all queues full."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.http.raw_http import Answer, rows_body, scoring
from tests.image.containers import RESTRICTED, Container
from tests.live_server import PRIMARY, metric_total, wait_until
from tests.patience import PROGRAM_S
from tests.tiny_models import HOLD, Gate, write_script

COLUMNS = 784
MIB = 1 << 20
LIMIT_BYTES = 1024 * MIB
# Bodies of 0.4 MB, and of 4 MB, which are received on the budget of large ones.
QUEUED_ROWS, LARGE_ROWS = 256, 2560

SCRIPT = f"""
import os
import time
from pathlib import Path

import stoker

def init():
    global folder
    folder = Path(os.environ["AZUREML_MODEL_DIR"])

@stoker.batched(shape=({COLUMNS},))
def run(data):
    if (data[:, 0] == {HOLD}).any():
        folder.joinpath("entered").touch()
        while not folder.joinpath("open").exists():
            time.sleep(0.002)
    return data[:, :1] * 2
"""


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    """A folder with the script, in which any user may write."""
    write_script(tmp_path / "slow", SCRIPT)
    tmp_path.chmod(0o755)
    (tmp_path / "slow").chmod(0o777)
    return tmp_path


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a machine of one core has nothing to limit")
def test_one_core_of_a_larger_machine(gpu_image: str, models: Path, start: Callable[..., Container]) -> None:
    """With `--cpus 1` the server has the processes and threads that it has where the kernel gives it one core."""

    def threads_with(option: str) -> dict[str, int]:
        arguments = ("/models/doubler.onnx", "--device=cpu")
        container = start(gpu_image, *arguments, options=[*RESTRICTED, option], models=models).until_ready()
        assert re.search(r"device +cpu: .*, 1 core\b", container.logs())
        assert re.search(r"\b1 core\b", container.inside("stoker", "doctor"))
        return container.threads()

    limited = threads_with("--cpus=1")
    assert limited == threads_with("--cpuset-cpus=0")
    assert {name for name in limited if name.startswith("stoker.")} == {
        "stoker.gateway.frontend",
        "stoker.device.process",
    }


def test_memory_stays_below_its_limit_with_full_queues(
    gpu_image: str, scene: Path, start: Callable[..., Container]
) -> None:
    """With a full arena and waiting large bodies, more requests are refused, and no process is killed."""
    options = [*RESTRICTED, "--cpus=1", f"--memory={LIMIT_BYTES}", f"--volume={scene}:/scene"]
    arguments = ("/scene/slow/score.py", "--name=slow", "--device=cpu", "--timeout-ms=300000", "--no-auth")
    container = start(gpu_image, *arguments, options=options).until_ready()
    gate = Gate(scene / "slow")

    with ThreadPoolExecutor(100) as callers:
        first = callers.submit(ask, container, HOLD, 1)
        wait_until(lambda: gate.entered, "the first row is in the script")
        queued = [callers.submit(ask, container, number, QUEUED_ROWS) for number in range(80)]
        wait_until(
            lambda: any(request.done() for request in queued),
            "the arena is full",
            timeout_s=PROGRAM_S,
            every_s=0.1,
        )
        large = [callers.submit(ask, container, number, LARGE_ROWS) for number in range(12)]
        wait_until(
            lambda: all(request.done() for request in large) or large_body_bytes(container) > 2 * MIB,
            "large bodies are there",
            timeout_s=PROGRAM_S,
            every_s=0.1,
        )
        gate.open()
        answers = [request.result() for request in (first, *queued, *large)]

    statuses = [answer.status for answer in answers]
    assert set(statuses) == {200, 503}, statuses
    assert {answer.error_code() for answer in answers if answer.status == 503} == {"overloaded"}
    for number, answer in zip(range(80), answers[1:], strict=False):
        assert answer.status == 503 or answer.json() == [[number * 2]] * QUEUED_ROWS
    restarts = re.findall(r"^stoker_process_restarts_total\{.*\} (\S+)", metrics(container), re.MULTILINE)
    assert restarts
    assert not any(map(float, restarts))
    assert not container.state()["OOMKilled"]
    assert 100 * MIB < peak_bytes(container) < LIMIT_BYTES
    assert killed(container) == 0


def ask(container: Container, number: int, rows: int) -> Answer:
    """Score rows that begin with a number, on a connection of its own."""
    row = [number] + [0] * (COLUMNS - 1)
    return container.ask(scoring("/score", PRIMARY, rows_body(*[row] * rows)), timeout_s=PROGRAM_S)


def metrics(container: Container) -> str:
    """All that it counts."""
    return container.get("/metrics").body.decode()


def large_body_bytes(container: Container) -> float:
    """Bytes that large bodies take."""
    return metric_total(metrics(container), "stoker_large_body_bytes")


def of_group(container: Container, *files: str) -> Iterator[str]:
    """The contents of these files of its memory's control group, of either version."""
    for file in files:
        done = container.podman.run("exec", container.name, "cat", f"/sys/fs/cgroup/{file}", check=False)
        if done.returncode == 0:
            yield done.stdout


def peak_bytes(container: Container) -> int:
    """The most memory that the container has ever had."""
    return int(next(of_group(container, "memory/memory.max_usage_in_bytes", "memory.peak")))


def killed(container: Container) -> int:
    """Processes of the container that the kernel has ended for want of memory."""
    events = next(of_group(container, "memory/memory.oom_control", "memory.events"))
    return int(dict(line.split() for line in events.splitlines())["oom_kill"])
