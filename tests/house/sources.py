"""The files of the repository, as git lists them, and the trees of their Python."""

from __future__ import annotations

import ast
import io
import subprocess
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = {
    "stoker": "server",
    "stoker_base": "server/stoker_base",
    "stoker_cluster": "server/stoker_cluster",
    "stoker_torchserve": "server/stoker_torchserve",
    "stoker_runs": "runs",
    "stoker_training": "models",
    "stoker_azure": "azure-ml",
    "stoker_client": "clients",
    "stoker_run": "runs/agent",
    "stoker_bench": "loadtests",
}
"""Each package, and the folder of its distribution."""


@dataclass(frozen=True)
class Module:
    """A Python file of the repository."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return ast.parse(self.text)

    @cached_property
    def comments(self) -> list[tuple[int, int, str]]:
        """Line, column and text of each comment."""
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return [(*token.start, token.string) for token in tokens if token.type == tokenize.COMMENT]

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the syntax tree."""
        return list(ast.walk(self.tree))

    @property
    def is_test(self) -> bool:
        """Whether the file is of the tests, of a `tests` folder or of pytest."""
        return "tests" in self.path.split("/") or self.path.endswith("conftest.py")

    @property
    def place(self) -> str:
        """The folder under which the module is counted: a package of the server, else the top of its distribution."""
        parts = self.path.split("/")[:-1]
        return "/".join(parts[:3] if parts[0] == "server" else parts[:2])


@cache
def tracked_files() -> list[str]:
    """Return the paths of all files that git tracks and that are there."""
    listed = subprocess.check_output(["git", "-C", str(ROOT), "ls-files", "-z"], text=True).split("\0")
    return [path for path in listed if (ROOT / path).is_file()]


@cache
def modules() -> list[Module]:
    """Return the Python files of the repository."""
    return [read_module(path) for path in tracked_files() if path.endswith(".py")]


def read_module(path: str) -> Module:
    """Return one Python file."""
    return Module(path, (ROOT / path).read_text(encoding="utf-8"))


def product_modules() -> Iterator[Module]:
    """Yield the Python files outside tests."""
    return (module for module in modules() if not module.is_test)
