"""The suites that CI runs: all targets of tests, with all that they need, once for each content."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.house.sources import PACKAGES
from tests.programs import load_program

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = re.findall(r"^((?:[a-z]+-)?test(?:-[a-z]+)?):(?!=)", MAKEFILE, re.MULTILINE)


suites = load_program(ROOT / ".ci" / "suites.py", "ci_suites")
ALL = (suites.FIRST, *suites.SUITES, suites.LAST)


def test_every_target_of_tests_is_a_suite() -> None:
    """None is forgotten, and chaos, the examples and the documentation come with them."""
    assert {suite.target for suite in ALL} == {
        *TARGETS,
        "chaos",
        "docs",
        "examples",
    }


@cache
def python_files() -> dict[str, Path]:
    """The files of the repository by the name under which they are imported."""
    roots = sorted(PACKAGES.values(), key=len, reverse=True)
    found = {}
    for path in suites.tracked_files():
        # Nobody can import the programs that build the console and the pages.
        if path.endswith(".py") and not path.startswith(("server/console/", "server/site/")):
            root = next((root for root in roots if path.startswith(f"{root}/")), "")
            name = (
                path.removeprefix(f"{root}/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            )
            found[name] = ROOT / path
    return found


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all statements below a node; expressions, which are most of a file, are not looked at."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(node, name, ()):
            yield child
            yield from statements(child)


@cache
def imported_names(path: Path) -> frozenset[str]:
    """The modules of the repository that a file imports."""
    names = set()
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(names & python_files().keys())


def import_closure(paths: Sequence[Path]) -> Iterator[Path]:
    """Yield the files that these import, and those that they import in turn."""
    waiting, seen = list(paths), set(paths)
    while waiting:
        path = waiting.pop()
        yield path
        found = {python_files()[name] for name in imported_names(path)} - seen
        seen |= found
        waiting += found


def recipe_folders(target: str) -> tuple[str, ...]:
    """The folders and modules whose tests a target runs, by its recipe."""
    recipe = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert recipe is not None
    return tuple(re.findall(r" ((?:loadtests/)?tests\b[\w/.]*)", recipe[1].replace("-m tests.", " tests/")))


@pytest.mark.parametrize("suite", ALL[1:], ids=lambda suite: suite.target)
def test_needs_of_a_suite_include_all_that_its_tests_import(suite: Any) -> None:
    """A suite is skipped only if nothing has changed that its tests import."""
    if all(suite.includes(str(path.relative_to(ROOT))) for path in python_files().values()):
        return
    folders = recipe_folders(suite.target)
    tests = [
        ROOT / path for path in suites.tracked_files() if path.startswith(folders) and path.endswith(".py")
    ]
    assert tests or suite.target == "docs"
    missing = {
        str(path.relative_to(ROOT))
        for path in import_closure(tests)
        if not suite.includes(str(path.relative_to(ROOT)))
    }
    assert missing == set()


class Clone:
    """A repository whose targets write down that they are made.

    Args:
        folder: Where it is made.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        shutil.copytree(ROOT / ".ci", folder / ".ci")
        self.write("tests/ray/test_runs.py", "")
        self.write("Makefile", "%:\n\t@echo $@ >> made\n\t@test ! -e fails-$@\n")
        self.write(".gitignore", ".venv\nmade\nfails-*\n__pycache__\n")
        subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)

    def write(self, name: str, text: str) -> None:
        """Change a file."""
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run(self, *options: str) -> tuple[int, list[str]]:
        """Run the suites; returns the exit status and the targets that were made."""
        made = self._folder / "made"
        made.unlink(missing_ok=True)
        command = [str(self._folder / ".ci" / "run"), *options]
        status = subprocess.run(command, cwd=self._folder, capture_output=True, check=False).returncode
        return status, made.read_text().split()


def test_suites_that_were_green_with_the_same_content_are_skipped(tmp_path: Path) -> None:
    """The tests always run; a change runs what depends on it; `--all` runs all suites."""
    clone = Clone(tmp_path)
    all_suites = {"prepare", *(suite.target for suite in ALL)}
    status, made = clone.run()
    assert (status, set(made)) == (0, all_suites)
    assert clone.run() == (0, ["test"])
    clone.write("tests/ray/test_runs.py", "changed = True")
    status, made = clone.run()
    depending = {suite.target for suite in ALL if suite.includes("tests/ray/test_runs.py")}
    assert (status, set(made)) == (0, {"prepare"} | depending)
    assert "test-ray" in depending
    assert "test-stores" not in depending
    status, made = clone.run("--all")
    assert (status, set(made)) == (0, all_suites)


def test_suite_that_fails_fails_the_run_and_runs_again(tmp_path: Path) -> None:
    """Neither it nor suites not begun count as green."""
    clone = Clone(tmp_path)
    clone.write("fails-test-ray", "")
    status, made = clone.run()
    assert status == 1
    assert made.count("test-ray") == 1
    (tmp_path / "fails-test-ray").unlink()
    status, made = clone.run()
    assert status == 0
    assert "test-ray" in made
    assert clone.run() == (0, ["test"])


def test_failed_tests_stop_the_run(tmp_path: Path) -> None:
    """A commit whose tests fail costs no more time."""
    clone = Clone(tmp_path)
    clone.write("fails-test", "")
    assert clone.run() == (1, ["test"])


def test_suite_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all that it has started, and it has failed."""
    monkeypatch.setattr(suites, "LIMIT_S", 0.1)
    with (tmp_path / "log").open("w") as log:
        assert not suites.run_command(["sh", "-c", "sleep 100; true"], tmp_path, log.fileno()).passed
    assert "it took more than" in (tmp_path / "log").read_text()


@pytest.mark.parametrize("status", [0, 3])
def test_processor_time_of_a_suite_includes_that_of_orphans(tmp_path: Path, status: int) -> None:
    """A server that outlives its parent counts, and the status of the suite is that of its command."""
    compute = "import time\nwhile time.process_time() < 0.5: pass"
    # Its parent ends at once; its id is known until its new parent has waited for it.
    orphan = f"orphan=$(\"$0\" -c '{compute}' > /dev/null & echo $!)"
    script = f"{orphan}; while kill -0 $orphan; do sleep 0.01; done; exit {status}"
    with (tmp_path / "log").open("w") as log:
        result = suites.run_command(["sh", "-c", script, sys.executable], tmp_path, log.fileno())
    assert result.passed == (status == 0)
    assert result.processor_s >= 0.5


def test_a_suite_fails_if_the_program_that_measures_it_is_killed(tmp_path: Path) -> None:
    """The kernel may do so for lack of memory: the failure is not lost with the measurement."""
    with (tmp_path / "log").open("w") as log:
        result = suites.run_command(["sh", "-c", "kill -9 $PPID"], tmp_path, log.fileno())
    assert (result.passed, result.processor_s) == (False, None)


def test_long_tests_are_run_by_a_suite_of_their_own() -> None:
    """Both take the same folders: one test of `loadtests` was run by none."""
    commands = [line.partition("$(PYTEST)")[2] for line in MAKEFILE.splitlines()]
    assert {' -m "not long"', " -m long"} <= set(commands)
