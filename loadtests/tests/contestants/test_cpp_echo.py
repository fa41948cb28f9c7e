"""The C++ echo: built once, kept, and left out with a reason where it cannot be built."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker_bench.benches import grpc_bench
from stoker_bench.benches.grpc_bench import CPP_ECHO, EchoNotBuilt, cpp_echo_launch, cpp_echo_program
from stoker_bench.contestants.servers import RunningServer
from stoker_bench.errors import BenchedServerError
from stoker_bench.generators.grpc_generator import answer_to
from stoker_bench.generators.scoring_request import ScoringRequest

PATH = "/any.Service/Method"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the echo, in a cache of its own."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        try:
            return cpp_echo_program()
        except EchoNotBuilt as error:
            if " is missing; " in str(error):
                pytest.skip(str(error))
            raise


def test_messages_of_any_method_come_back(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also empty ones and those of several frames, one after the other."""
    monkeypatch.setattr(grpc_bench, "cpp_echo_program", lambda: program)
    launch = cpp_echo_launch(PATH)
    assert (launch.name, launch.uri) == (CPP_ECHO, f"http://127.0.0.1:{launch.port}{PATH}")
    with RunningServer(launch, tmp_path / "log"):
        for message in (b"", b"abc", os.urandom(300_000)):
            assert answer_to(ScoringRequest("127.0.0.1", launch.port, PATH, message)) == message


def test_a_call_that_fails_is_an_error(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message above gRPC's limit of 4 MiB fails so; the error has its status."""
    monkeypatch.setattr(grpc_bench, "cpp_echo_program", lambda: program)
    launch = cpp_echo_launch(PATH)
    with (
        RunningServer(launch, tmp_path / "log"),
        pytest.raises(BenchedServerError, match=r"(?s)127\.0\.0\.1.*/any\.Service/Method answered .*status"),
    ):
        answer_to(ScoringRequest("127.0.0.1", launch.port, PATH, bytes(5 << 20)))


def test_built_program_is_reused(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program is built once per source and library, and is alone in the cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(program.parents[1]))
    monkeypatch.setattr(grpc_bench, "_build", lambda *_: pytest.fail("it was there"))
    assert cpp_echo_program() == program
    assert list(program.parent.iterdir()) == [program]


@pytest.fixture
def toolchain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder the whole PATH, and an empty cache; return the folder."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def pretend(folder: Path, name: str, script: str) -> None:
    """Put a program of the shell into a folder."""
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_missing_compiler_is_named_with_its_package(toolchain: Path) -> None:
    """As one sentence; so is the library where only that is missing."""
    advice = r"install g\+\+, pkg-config and libgrpc\+\+-dev"
    with pytest.raises(EchoNotBuilt, match=rf"^c\+\+ is missing; {advice}"):
        cpp_echo_program()
    pretend(toolchain, "c++", "echo 12")
    with pytest.raises(EchoNotBuilt, match=rf"^pkg-config is missing; {advice}"):
        cpp_echo_program()
    pretend(toolchain, "pkg-config", "exit 1")
    with pytest.raises(EchoNotBuilt, match=rf"^gRPC's library for C\+\+ is missing; {advice}"):
        cpp_echo_program()


def test_a_source_that_does_not_compile_leaves_nothing(toolchain: Path, tmp_path: Path) -> None:
    """The error has the compiler's first one; the next bench tries again."""
    pretend(toolchain, "pkg-config", "echo 1.0")
    pretend(
        toolchain, "c++", 'test "$1" = --version || { echo "echo.cpp:1: error: no such file" >&2; exit 1; }'
    )
    for _ in range(2):
        with pytest.raises(EchoNotBuilt, match=r"c\+\+ does not compile it: echo.cpp:1: error: no such file"):
            cpp_echo_program()
    assert not list((tmp_path / "cache" / "stoker-bench").iterdir())


def test_another_library_is_another_program(toolchain: Path) -> None:
    """A program that was linked with the old library may not run with the new one."""
    pretend(toolchain, "c++", 'test "$1" = --version && exit; for last; do :; done; : > "$last"')
    pretend(toolchain, "pkg-config", "echo 1.0")
    first = cpp_echo_program()
    pretend(toolchain, "pkg-config", "echo 2.0")
    assert cpp_echo_program() != first
    assert first.exists()


def test_a_cache_that_cannot_be_written_is_a_reason(
    toolchain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bench goes on without the echo."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    for name in ("c++", "pkg-config"):
        pretend(toolchain, name, "echo 1")
    with pytest.raises(EchoNotBuilt, match="the cache for it cannot be written"):
        cpp_echo_program()
