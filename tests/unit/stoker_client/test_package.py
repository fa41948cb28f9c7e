"""The client as a package: alone, documented, and without the server."""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.patience import PROGRAM_S
from tests.unit.stoker_client.puppet_server import KEY, Behaviour, PuppetServer, like_stoker

import stoker_client

if TYPE_CHECKING:
    from collections.abc import Callable

CLIENTS = Path(__file__).parents[3] / "clients"
README = (CLIENTS / "README.md").read_text()

WITHOUT_THE_SERVER = """
import sys

class NoServer:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"stoker", "starlette", "uvicorn", "simdjson", "onnxruntime"}:
            raise ModuleNotFoundError(f"{name} is not there")

sys.meta_path.insert(0, NoServer())
from stoker_client import Client
with Client(sys.argv[1], sys.argv[2]) as client:
    print(client.score([[0.01] * 784]).tolist())
"""


def test_the_client_works_without_the_server(serve: Callable[[Behaviour], PuppetServer]) -> None:
    """In a process where nothing of the server can be imported, rows are scored."""
    server = serve(like_stoker)
    command = [sys.executable, "-c", WITHOUT_THE_SERVER, server.uri, KEY]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PROGRAM_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[7]\n", "")


@pytest.mark.parametrize("module", [name for _, name, _ in pkgutil.iter_modules(stoker_client.__path__)])
def test_every_exported_name_exists(module: str) -> None:
    """The names in `__all__` are there, sorted, and each module of the package has them."""
    imported = importlib.import_module(f"stoker_client.{module}")
    assert all(hasattr(imported, name) for name in imported.__all__)


def test_examples_of_the_readme_print_their_comments(
    serve: Callable[[Behaviour], PuppetServer], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each Python example of the README runs, and prints what its comments say."""
    server = serve(like_stoker)
    examples = "\n".join(re.findall(r"```python\n(.*?)```", README, re.DOTALL))
    expected = re.findall(r"print\(.*\)  # (.*)", examples)
    examples = examples.replace("http://127.0.0.1:8080", server.origin).replace('"KEY"', f'"{KEY}"')
    exec(compile(examples, "README.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == expected
    assert len(expected) == 7
