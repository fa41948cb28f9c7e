"""The C++ echo: compiled for each bench, and left out with a reason where it cannot be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker_bench.benches.grpc_bench import CPP_ECHO, EchoNotBuilt, answer_to, cpp_echo_launch
from stoker_bench.contestants.servers import RunningServer
from stoker_bench.errors import BenchedServerError
from stoker_bench.generators.scoring_request import ScoringRequest

PATH = "/any.Service/Method"


def test_messages_of_any_method_come_back_and_a_call_that_fails_is_an_error(tmp_path: Path) -> None:
    """Also empty ones and those of several frames; one above gRPC's limit of 4 MiB fails, with its status."""
    try:
        launch = cpp_echo_launch(PATH, tmp_path)
    except EchoNotBuilt as error:
        pytest.skip(str(error))
    assert (launch.name, launch.uri) == (CPP_ECHO, f"http://127.0.0.1:{launch.port}{PATH}")
    with RunningServer(launch, tmp_path / "log"):
        for message in (b"", b"abc", os.urandom(300_000)):
            assert answer_to(ScoringRequest("127.0.0.1", launch.port, PATH, message)) == message
        with pytest.raises(
            BenchedServerError, match=r"(?s)127\.0\.0\.1.*/any\.Service/Method answered .*status"
        ):
            answer_to(ScoringRequest("127.0.0.1", launch.port, PATH, bytes(5 << 20)))


@pytest.fixture
def toolchain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder the whole PATH; return the folder."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def pretend(folder: Path, name: str, script: str) -> None:
    """Put a program of the shell into a folder."""
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_missing_compiler_is_named_with_its_package(toolchain: Path, tmp_path: Path) -> None:
    """As one sentence; so is the library where only that is missing."""
    advice = r"install g\+\+, pkg-config and libgrpc\+\+-dev"
    with pytest.raises(EchoNotBuilt, match=rf"^pkg-config is missing; {advice}"):
        cpp_echo_launch(PATH, tmp_path)
    pretend(toolchain, "pkg-config", "echo \"error: no package 'grpc++'\" >&2; exit 1")
    with pytest.raises(EchoNotBuilt, match=rf"^pkg-config failed: error: no package 'grpc\+\+'; {advice}"):
        cpp_echo_launch(PATH, tmp_path)
    pretend(toolchain, "pkg-config", "echo -lgrpc++")
    with pytest.raises(EchoNotBuilt, match=rf"^c\+\+ is missing; {advice}"):
        cpp_echo_launch(PATH, tmp_path)


def test_a_source_that_does_not_compile_is_a_reason(toolchain: Path, tmp_path: Path) -> None:
    """The error has the compiler's first one."""
    pretend(toolchain, "pkg-config", "echo -lgrpc++")
    pretend(toolchain, "c++", 'echo "In file x:" >&2; echo "echo.cpp:1: error: no such file" >&2; exit 1')
    with pytest.raises(EchoNotBuilt, match=r"c\+\+ failed: echo.cpp:1: error: no such file"):
        cpp_echo_launch(PATH, tmp_path)
