"""The echo of gRPC in C++: built by the compiler here when it is first wanted, then kept in the user's cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from stoker_bench.contestants.servers import HOST, Launch, free_port
from stoker_bench.errors import BenchedServerError

__all__ = ["CPP_ECHO", "EchoNotBuilt", "cpp_echo_launch", "cpp_echo_program"]

CPP_ECHO: Final = "bare C++ echo"
SOURCE: Final = Path(__file__).with_name("baselines") / "grpc_echo.cpp"
COMPILER, LIBRARIES_OF, LIBRARY = "c++", "pkg-config", "grpc++"
INSTALL: Final = "install g++, pkg-config and libgrpc++-dev (Debian's names)"
BUILD_TIMEOUT_S: Final = 300


class EchoNotBuilt(BenchedServerError):
    """This machine cannot build the echo; the message says what is missing."""

    code = "echo_not_built"


def cpp_echo_launch(path: str) -> Launch:
    """Start the echo, for calls of a method's path; it is built where that has not been done yet.

    Raises:
        EchoNotBuilt: It cannot be.
    """
    port = free_port()
    return Launch(CPP_ECHO, (str(cpp_echo_program()), f"{HOST}:{port}"), port, ready_path="", score_path=path)


def cpp_echo_program() -> Path:
    """Return the compiled echo, from the cache or built into it.

    Raises:
        EchoNotBuilt: The compiler or gRPC's library is missing, or the source does not compile.
    """
    for program in (COMPILER, LIBRARIES_OF):
        if shutil.which(program) is None:
            raise EchoNotBuilt(f"{program} is missing; {INSTALL}")
    try:
        flags = _output(LIBRARIES_OF, "--cflags", "--libs", LIBRARY).split()
        version = _output(LIBRARIES_OF, "--modversion", LIBRARY) + _output(COMPILER, "--version")
    except subprocess.CalledProcessError as error:
        raise EchoNotBuilt(f"gRPC's library for C++ is missing; {INSTALL}") from error
    command = [COMPILER, "-std=c++17", "-O2", str(SOURCE), *flags]
    # Another source, compiler or library is another program.
    key = hashlib.sha256("\0".join([SOURCE.read_text(), version, *flags]).encode()).hexdigest()
    try:
        folder = _cache()
        program_file = folder / f"grpc-echo-{key[:16]}"
        if not program_file.exists():
            folder.mkdir(parents=True, exist_ok=True)
            _build(command, program_file)
    except (OSError, RuntimeError) as error:
        raise EchoNotBuilt(f"the cache for it cannot be written: {error}") from error
    return program_file


def _cache() -> Path:
    """The folder for what is built; RuntimeError where the user has no home."""
    named = os.environ.get("XDG_CACHE_HOME")
    return (Path(named) if named else Path.home() / ".cache") / "stoker-bench"


def _build(command: list[str], program: Path) -> None:
    """Compile beside the program's place, and move it there when it is whole: two benches may build it at once."""
    with tempfile.TemporaryDirectory(prefix="building-", dir=program.parent) as folder:
        built = Path(folder, program.name)
        try:
            _output(*command, "-o", str(built))
        except subprocess.CalledProcessError as error:
            told = next(
                (line for line in error.stderr.splitlines() if "error" in line), "it said nothing of it"
            )
            raise EchoNotBuilt(f"{COMPILER} does not compile it: {told.strip()}") from error
        except subprocess.TimeoutExpired as error:
            raise EchoNotBuilt(f"{COMPILER} did not compile it within {BUILD_TIMEOUT_S} s") from error
        built.replace(program)


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=BUILD_TIMEOUT_S)
    return done.stdout.strip()
