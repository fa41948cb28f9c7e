"""The build that lays the libraries of the console beside its page."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

BUILD = Path(__file__).parents[2] / "server" / "console" / "build.py"


@pytest.fixture
def build() -> dict[str, Any]:
    return runpy.run_path(str(BUILD))


def packages(folder: Path, build: dict[str, Any], hooks: str) -> Path:
    """A folder of packages, as npm would fetch them."""
    for name in build["FILES"]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("some text\n//# sourceMappingURL=there.map\n")
    (folder / "preact/hooks/dist/hooks.mjs").write_text(hooks)
    return folder


def test_modules_find_each_other_without_names_of_packages(tmp_path: Path, build: dict[str, Any]) -> None:
    """A browser knows files alone; each import points to a served file, and the old output is removed."""
    target = tmp_path / "libraries"
    target.mkdir()
    (target / "old.js").touch()
    build["lay"](packages(tmp_path / "packages", build, 'import{h}from"preact";'), build["FILES"], target)
    assert {path.name for path in target.iterdir()} == set(build["FILES"].values())
    assert (target / "hooks.js").read_text() == 'import{h}from"./preact.js";\n'
    assert (target / "uplot.js").read_text() == "some text\n"


def test_a_library_that_imports_otherwise_ends_the_build(tmp_path: Path, build: dict[str, Any]) -> None:
    """Else the page would be blank, and only a browser would say why."""
    with pytest.raises(SystemExit, match="does not import preact"):
        build["lay"](
            packages(tmp_path / "packages", build, "import 'preact';"), build["FILES"], tmp_path / "libraries"
        )
