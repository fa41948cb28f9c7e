"""The distributions: what they ask for, and what is built of them."""

from __future__ import annotations

from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


def locked() -> list[Requirement]:
    """The lines of constraints.txt."""
    return [Requirement(line) for line in (ROOT / "constraints.txt").read_text(encoding="ascii").splitlines()]


def test_packages_of_grpc_are_locked_in_step() -> None:
    """They are released together, and tried together by those who release them: one minor version of all."""
    versions = {pin.name: str(pin.specifier) for pin in locked() if pin.name.startswith("grpcio")}
    assert versions.keys() >= {"grpcio", "grpcio-health-checking", "grpcio-reflection", "grpcio-tools"}
    assert len({version.rpartition(".")[0] for version in versions.values()}) == 1, versions
