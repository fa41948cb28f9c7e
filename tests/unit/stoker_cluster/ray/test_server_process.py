"""The process of a server that belongs to another one: readiness and end."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from tests.own_time import give_own_time

from stoker.errors import LoadFailed
from stoker_cluster.ray import child, server_process
from stoker_cluster.ray.server_process import ServerProcess


class PuppetProcess:
    """A process that ends on request, or, if it is deaf, when it is killed."""

    def __init__(self, command: list[str], **options: Any) -> None:
        self.command, self.options = command, options
        self.returncode: int | None = None
        self.deaf = False
        self.log = options["stdout"].name

    def poll(self) -> int | None:
        return self.returncode

    def terminate(self) -> None:
        if not self.deaf:
            self.returncode = 0

    def kill(self) -> None:
        self.returncode = -9

    def wait(self, timeout_s: float | None = None) -> int:
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.command, timeout_s or 0)
        return self.returncode


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServerProcess:
    """A server whose process is a puppet, and which is waited for without a pause."""
    monkeypatch.setattr(subprocess, "Popen", PuppetProcess)
    give_own_time(monkeypatch, server_process, sleep=lambda _: None)
    return ServerProcess(("m.onnx",), "::1", 8081, tmp_path, {"STOKER_PRIMARY_KEY": "k"})


def puppet_of(server: ServerProcess) -> PuppetProcess:
    """Its process."""
    puppet: Any = server.process
    assert isinstance(puppet, PuppetProcess)
    return puppet


def test_it_is_started_with_its_address_and_keys(server: ServerProcess) -> None:
    """By the module that lets it end with this process."""
    puppet = puppet_of(server)
    assert server.base_uri == "http://[::1]:8081"
    assert puppet.command[1:4] == ["-P", "-m", "stoker_cluster.ray.child"]
    assert puppet.command[5:] == ["m.onnx", "--host", "::1", "--port", "8081"]
    assert puppet.options["env"]["STOKER_PRIMARY_KEY"] == "k"


def test_it_is_ready_when_it_says_so(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when it cannot be reached yet, nor while it loads."""
    answers = iter([httpx.ConnectError("not yet"), httpx.Response(503), httpx.Response(200)])

    def get(_: object, uri: str) -> httpx.Response:
        assert uri == "http://[::1]:8081/v2/health/ready"
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(httpx.Client, "get", get)
    server.wait_until_ready(1, clock_s=lambda: 0.0)
    assert next(answers, None) is None


def test_error_of_an_unready_server_says_why(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says that the time has passed or the exit code, with the end of the log."""
    monkeypatch.setattr(httpx.Client, "get", lambda *_: httpx.Response(503))
    Path(puppet_of(server).log).write_text("".join(f"line {n}\n" for n in range(99)))
    ticks = itertools.count()
    with pytest.raises(LoadFailed, match=r"not ready within 5 s: line 79\n(?s:.*)line 98$"):
        server.wait_until_ready(5, clock_s=lambda: float(next(ticks)))
    puppet_of(server).returncode = 3
    with pytest.raises(LoadFailed, match="ended with exit code 3: line 79"):
        server.wait_until_ready(5)


def test_it_drains_and_one_that_is_deaf_is_killed(server: ServerProcess) -> None:
    """Draining returns the exit code."""
    puppet_of(server).deaf = True
    assert server.drain() == -9
    puppet_of(server).returncode, puppet_of(server).deaf = None, False
    assert server.drain() == 0
    assert server.drain() == 0


@pytest.mark.parametrize("parent", [1, 0])
def test_the_child_serves_only_while_its_parent_lives(monkeypatch: pytest.MonkeyPatch, parent: int) -> None:
    """It requests SIGTERM at its parent's end and becomes `stoker serve`; without a parent it exits."""
    calls: list[Any] = []
    library = SimpleNamespace(prctl=lambda *arguments: calls.append(arguments))
    monkeypatch.setattr(child.ctypes, "CDLL", lambda _: library)
    monkeypatch.setattr(child.os, "getppid", lambda: 1)
    monkeypatch.setattr(child.os, "execv", lambda _, command: calls.append(command[-3:]))
    monkeypatch.setattr(sys, "argv", ["child", str(parent), "m.onnx", "--port=1"])
    if parent:
        child.main()
        assert calls == [(1, 15), ["serve", "m.onnx", "--port=1"]]
    else:
        with pytest.raises(SystemExit):
            child.main()
        assert calls == [(1, 15)]
