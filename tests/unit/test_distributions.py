"""The distributions: what they ask for, and what is built of them."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


def locked() -> list[Requirement]:
    """The lines of constraints.txt."""
    return [Requirement(line) for line in (ROOT / "constraints.txt").read_text(encoding="ascii").splitlines()]


def test_packages_of_grpc_are_locked_in_step() -> None:
    """They are released together, and tried together by those who release them: one minor version of all."""
    versions = {pin.name: str(pin.specifier) for pin in locked() if pin.name.startswith("grpcio")}
    assert versions.keys() >= {"grpcio", "grpcio-health-checking", "grpcio-reflection", "grpcio-tools"}
    assert len({version.rpartition(".")[0] for version in versions.values()}) == 1, versions


@pytest.mark.parametrize("python", ["3.11.9", "3.13.1"])
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("folder", [".", "clients"])
def test_everything_that_is_asked_for_is_locked(folder: str, machine: str, python: str) -> None:
    """Whichever extras are installed, and where, constraints.txt says in which version: one, that will do."""
    where = {
        "platform_machine": machine,
        "python_full_version": python,
        "python_version": python.rpartition(".")[0],
    }
    project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project.get("optional-dependencies", {}).values()
    asked = [Requirement(text) for texts in (project["dependencies"], *extras) for text in texts]
    for requirement in asked:
        name = canonicalize_name(requirement.name)
        if name == "stoker-client" or not applies(requirement, where):
            continue
        pins = [pin for pin in locked() if canonicalize_name(pin.name) == name and applies(pin, where)]
        assert len(pins) == 1, name
        assert requirement.specifier.contains(str(pins[0].specifier).removeprefix("==")), name


def applies(requirement: Requirement, where: dict[str, str]) -> bool:
    return requirement.marker is None or requirement.marker.evaluate(where)
