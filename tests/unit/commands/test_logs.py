"""`stoker logs`: the last lines of a log, and where it is if it is in no file."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from tests.patience import PROGRAM_S

from stoker.cli import main

SERVER = """
import sys
from pathlib import Path
from stoker.settings.workspace import Workspace
from stoker.supervisor.server_record import ServerRecord, recorded
with recorded(Workspace(Path(sys.argv[1])), ServerRecord.of_this_process("http://127.0.0.1:" + sys.argv[2])):
    print("ready", flush=True)
    for line in sys.stdin:
        print(line.rstrip(), file=sys.stderr, flush=True)
        print("written", flush=True)
"""


@contextmanager
def running(workspace: Path, stderr: IO[bytes] | int, port: int = 1) -> Iterator[subprocess.Popen[str]]:
    """A process that is recorded as a server; it writes the test's lines to standard error."""
    command = [sys.executable, "-c", SERVER, str(workspace), str(port)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def write(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()
    assert process.stdout.readline() == "written\n"


def test_the_successor_stands_for_a_server_that_drains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a reload both have one address for some seconds, and no choice is needed; a process id still chooses."""
    logs = [tmp_path / "old.log", tmp_path / "new.log"]
    with (
        logs[0].open("wb") as first,
        logs[1].open("wb") as second,
        running(tmp_path, first) as old,
        running(tmp_path, second) as new,
    ):
        write(old, "drains")
        write(new, "serves")
        for words, line in ([], "serves"), (["1"], "serves"), ([str(old.pid)], "drains"):
            assert main(["logs", *words, "--workspace", str(tmp_path)]) == 0
            assert capsys.readouterr().out == f"{line}\n"


def test_the_last_lines_of_a_file_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The number is an option, and a renamed file counts too; control characters are escaped."""
    log = tmp_path / "server.log"
    with log.open("wb") as file, running(tmp_path, file) as process:
        for number in range(5):
            write(process, f"line {number} {'x' * 40_000 if number == 3 else ''}\x1b[2J")
        log.rename(tmp_path / "old.log")
        for lines in (0, 1, 2, 4, 5, 100):
            assert main(["logs", "-n", str(lines), "--workspace", str(tmp_path)]) == 0
            printed = capsys.readouterr().out.splitlines()
            assert [line.split()[1] for line in printed] == [
                str(number) for number in range(max(0, 5 - lines), 5)
            ]
            assert all(line.endswith(r"\x1b[2J") for line in printed)


def test_a_log_is_followed_until_the_server_ends(tmp_path: Path) -> None:
    """Also when it is truncated meanwhile."""
    log = tmp_path / "server.log"
    with log.open("ab") as file, running(tmp_path, file) as process:
        write(process, "first")
        command = [sys.executable, "-m", "stoker.cli", "logs", "-f", "--workspace", str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follower:
            assert follower.stdout is not None
            assert follower.stdout.readline() == "first\n"
            write(process, "second")
            assert follower.stdout.readline() == "second\n"
            os.truncate(log, 0)
            write(process, "3rd")
            assert follower.stdout.readline() == "3rd\n"
            process.kill()
            assert follower.stdout.read() == ""
            assert follower.wait(PROGRAM_S) == 0


def test_log_outside_files_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pipe, a terminal, nowhere."""
    words = ["logs", "--workspace", str(tmp_path)]
    with running(tmp_path, subprocess.PIPE):
        assert main(words) == 2
    assert "writes its log to a pipe" in capsys.readouterr().err
    with running(tmp_path, subprocess.DEVNULL):
        assert main(words) == 2
    assert "2> /dev/null" in capsys.readouterr().err
    leader, terminal = os.openpty()
    with os.fdopen(leader, "rb"), os.fdopen(terminal, "wb") as stream, running(tmp_path, stream):
        assert main(words) == 2
    assert "to the terminal /dev/pts/" in capsys.readouterr().err


def test_of_several_servers_one_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By its process id or its port."""
    with (
        (tmp_path / "a").open("wb") as a,
        (tmp_path / "b").open("wb") as b,
        running(tmp_path, a, 7001) as first,
        running(tmp_path, b, 7002) as second,
    ):
        write(first, "of a")
        write(second, "of b")
        assert main(["logs", "--workspace", str(tmp_path)]) == 2
        assert "2 servers run here" in capsys.readouterr().err
        for name, line in ((first.pid, "of a"), (7002, "of b")):
            assert main(["logs", str(name), "--workspace", str(tmp_path)]) == 0
            assert capsys.readouterr().out == f"{line}\n"
