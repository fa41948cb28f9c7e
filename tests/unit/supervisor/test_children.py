"""Processes of the supervisor: what they inherit, how they end, and what what they start inherits."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from tests.descriptors import open_descriptors, room_for_descriptors
from tests.patience import PATIENCE_S, PROGRAM_S

from stoker.control.channel import Codec
from stoker.supervisor import children
from stoker.supervisor.children import Child
from stoker.system.resources import MemoryKills

TELLS_ITS_ENVIRONMENT = """
import os
import sys
from dataclasses import dataclass

from stoker.control.channel import ControlChannel
from stoker.control.channel import Codec

@dataclass
class Report:
    environment: dict[str, str]
    padding: str

channel = ControlChannel.inherited(int(sys.argv[sys.argv.index("--control-fd") + 1]), Codec(Report, Report))
channel.send(Report(dict(os.environ), "x" * 200_000))
sys.exit(5)
"""

STARTS_OTHERS = """
import os
import signal
import subprocess
import threading

from stoker.device.process import _leave_ending_to_the_supervisor

_leave_ending_to_the_supervisor()
os.kill(os.getpid(), signal.SIGTERM)
os.kill(os.getpid(), signal.SIGINT)

codes = []

def run():
    for number in (signal.SIGTERM, signal.SIGINT):
        child = subprocess.Popen(["sleep", "60"])
        child.send_signal(number)
        codes.append(child.wait())
    reading, writing = os.pipe()
    forked = os.fork()
    if not forked:
        os.write(writing, b"!")
        signal.pause()
        os._exit(0)
    os.read(reading, 1)
    os.kill(forked, signal.SIGTERM)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]))

thread = threading.Thread(target=run)
thread.start()
thread.join()
print(codes)
"""


@dataclass(frozen=True)
class Report:
    """The message of a child."""

    environment: dict[str, str]
    padding: str


ReportingChild = Child[Report, Report]
CODEC: Final[Codec[Report, Report]] = Codec(Report, Report)


def test_a_child_gets_no_keys_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its environment has no keys, which a script could print; its last message is read after its end."""
    (tmp_path / "tells.py").write_text(TELLS_ITS_ENVIRONMENT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    keys = ("STOKER_ADMIN_KEY", "STOKER_PRIMARY_KEY", "STOKER_SECONDARY_KEY")
    for name in (*keys, "STOKER_HOST", "STOKER_KEY_OF_A_HOUSE"):
        monkeypatch.setenv(name, "a secret")

    async def scene() -> tuple[Report, ReportingChild]:
        reports: list[Report] = []
        ended = asyncio.get_running_loop().create_future()
        child = await Child.start(
            "child",
            "tells",
            CODEC,
            lambda _, message: reports.append(message),
            ended.set_result,
            variables={"WORDS": "two"},
        )
        async with asyncio.timeout(PATIENCE_S):
            assert await ended is child
        (message,) = reports
        return message, child

    async def scenes() -> tuple[Report, ReportingChild]:
        await scene()
        before = open_descriptors()
        ended = await scene()
        assert open_descriptors() == before
        return ended

    message, child = asyncio.run(scenes())
    environment = message.environment
    assert [name for name in environment if name in keys] == []
    assert (environment["STOKER_HOST"], environment["STOKER_KEY_OF_A_HOUSE"]) == ("a secret", "a secret")
    assert (environment["WORDS"], child.describe_exit()) == ("two", "exited with code 5")


def test_a_child_with_a_lost_message_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its successor reports anew; the end of a child that has ended by itself is reported too."""
    (tmp_path / "tells.py").write_text(TELLS_ITS_ENVIRONMENT.replace("sys.exit(5)", "channel.receive()"))
    (tmp_path / "tells_and_ends.py").write_text(TELLS_ITS_ENVIRONMENT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    async def scene(module: str) -> str:
        reports: list[Report] = []
        ended = asyncio.get_running_loop().create_future()
        child = await Child.start(
            "child", module, CODEC, lambda _, message: reports.append(message), ended.set_result
        )
        async with asyncio.timeout(PATIENCE_S):
            with room_for_descriptors(0):
                await ended
        assert reports == []
        return child.describe_exit()

    assert asyncio.run(scene("tells")) == "was ended by SIGKILL"
    assert "a message of child is lost, killing it" in caplog.text
    assert asyncio.run(scene("tells_and_ends")) in {"was ended by SIGKILL", "exited with code 5"}


def test_programs_started_by_a_device_process_heed_signals() -> None:
    """A device process ignores signals, but its programs and forks do not."""
    ran = subprocess.run(
        [sys.executable, "-c", STARTS_OTHERS], capture_output=True, text=True, timeout=PROGRAM_S, check=True
    )
    assert json.loads(ran.stdout) == [-15, -2, -15]


@pytest.mark.parametrize("by_supervisor", [False, True])
def test_a_child_that_the_kernel_kills_for_memory_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_supervisor: bool
) -> None:
    """The kernel has counted one more kill by then; what the supervisor kills itself is no affair of the memory."""
    (tmp_path / "waits.py").write_text(TELLS_ITS_ENVIRONMENT.replace("sys.exit(5)", "channel.receive()"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    counted = [0]
    monkeypatch.setattr(children, "_KILLS", MemoryKills(lambda: counted[0]))

    async def scene() -> str:
        ended = asyncio.get_running_loop().create_future()

        def kill(child: Child[Report, Report], _: Report) -> None:
            counted[0] += 1
            if by_supervisor:
                child.kill()
            else:
                child.process.kill()

        child = await Child.start("child", "waits", CODEC, kill, ended.set_result)
        async with asyncio.timeout(PATIENCE_S):
            await ended
        return child.describe_exit()

    assert ("which had no memory left" in asyncio.run(scene())) is not by_supervisor
