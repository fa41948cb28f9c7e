"""The tutorials, as a reader follows them: files are written, commands run in turn, and write what is shown."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.live_server import LiveServer, environment_with, free_port, marked_processes
from tests.targets.sshd import Sshd, why_not

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = sorted((ROOT / "server/docs/tutorials").glob("*.md"))
BLOCK: Final = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SERVE: Final = "stoker serve "
EXPORT: Final = "python export.py"
MACHINE: Final = "--address gpu.example.com --key-file ~/.ssh/id_ed25519"
READY_WITHIN_S: Final = 240.0
"""TensorFlow takes some seconds to import, and minutes where others use all cores."""


def files_and_commands(text: str) -> Iterator[tuple[str, str]]:
    """Each file of a page, its name and content, and each command with `$ ` before it and the lines that it shows."""
    for language, content in BLOCK.findall(text):
        if language == "python":
            first, _, _ = content.partition("\n")
            assert first.startswith("# "), f"no name of a file: {first}"
            yield first[2:], content
        elif language == "console":
            for piece in re.split(r"^(?=\$ )", content, flags=re.MULTILINE)[1:]:
                command, _, shown = piece.partition("\n")
                yield command, shown


def export_instead(folder: Path) -> None:
    """Write the files of the tutorial's export without PyTorch, which has some GB with its libraries."""
    rows = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", size])
        for name, size in (("x", 4), ("scores", 3))
    ]
    weights = numpy_helper.from_array(np.eye(4, 3, dtype=np.float32), "weights")
    nodes = [
        helper.make_node("MatMul", ["x", "weights"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["scores"], axis=1),
    ]
    graph = helper.make_graph(nodes, "exported", rows[:1], rows[1:], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, str(folder / "model.onnx"))


def check_shown(command: str, shown: list[str], written: str) -> None:
    """Each line that is shown was written, in this order, between others; `…` at its end is anything."""
    rest = iter(written.splitlines())
    for line in shown:
        beginning = line.removesuffix("…")
        whole = beginning == line
        assert any(seen == line if whole else seen.startswith(beginning) for seen in rest), (
            f"{command}: {line}\n{written}"
        )


class Reader:
    """Someone who follows a tutorial in an empty folder, with ports of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server: LiveServer | None = None
        self._ports = {"8080": str(free_port()), "8001": str(free_port())}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._mark = f"STOKER_TESTS_TUTORIAL={uuid.uuid4()}"
        name, _, value = self._mark.partition("=")
        self._environment = environment_with({"PATH": path, name: value})

    def follow(self, text: str) -> None:
        """Write the files of a page, run its commands, and compare what they write."""
        for port, mine in self._ports.items():
            text = re.sub(rf"\b{port}\b", mine, text)
        for head, content in files_and_commands(text):
            if not head.startswith("$ "):
                (self.folder / head).write_text(content, encoding="utf-8")
            elif f"{head[2:]} ".startswith(SERVE):
                self._serve(head[2:], content.splitlines())
            elif head[2:] == EXPORT and importlib.util.find_spec("torch") is None:
                export_instead(self.folder)
            else:
                self._run(head[2:], content)

    def _serve(self, command: str, shown: list[str]) -> None:
        self.end()
        self.server = LiveServer(
            self.folder,
            *shlex.split(command)[2:],
            given_keys=False,
            workspace=self.folder / ".stoker",
            port=int(self._ports["8080"]),
            ready_within_s=READY_WITHIN_S,
        )
        check_shown(command, shown, self.server.output())

    def _run(self, command: str, shown: str) -> None:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=READY_WITHIN_S,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        check_shown(command, shown.splitlines(), done.stdout)

    def end(self) -> None:
        """End the server."""
        if self.server is not None:
            self.server.kill()

    def kill_left(self) -> list[list[str]]:
        """Kill what the commands have left running, and return what that was."""
        left = list(marked_processes(self._mark))
        for pid, _ in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return [command for _, command in left]


@contextlib.contextmanager
def a_machine_for(text: str, folder: Path) -> Iterator[str]:
    """The page with a real machine in the place of the one that it names, if it does."""
    if MACHINE not in text:
        yield text
        return
    if reason := why_not():
        pytest.skip(reason)
    server = Sshd(folder).start()
    try:
        options = (("--" + name.replace("_", "-"), str(value)) for name, value in server.settings().items())
        yield text.replace(MACHINE, shlex.join(word for option in options for word in option))
    finally:
        server.end()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_command_of_a_tutorial_prints_the_lines_that_it_shows(
    page: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """From an empty folder, every command succeeds and writes the lines below it, and nothing is left running."""
    reader = Reader(tmp_path)
    text = page.read_text(encoding="utf-8")
    try:
        with a_machine_for(text, tmp_path_factory.mktemp("machine")) as followed:
            reader.follow(followed)
    finally:
        reader.end()
        left = reader.kill_left()
    assert not left
