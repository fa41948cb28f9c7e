"""Cores within the limit of a container."""

from pathlib import Path

import pytest

from stoker.system import resources
from stoker.system.resources import core_count, cpu_limit, limit_library_threads


def machine(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    """A file system with these control groups."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    for name, text in files.items():
        file = root / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.mark.parametrize(
    ("cgroup", "files", "limit"),
    [
        # Version 2: in a container, with the container's path outside, in a group within another, without limits.
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/kubepods/pod1/c1\n", {"cpu.max": "200000 100000"}, 2.0),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 100000"}, 3.0),
        ("0::/a/b\n", {"a/b/cpu.max": "400000 100000", "a/cpu.max": "100000 100000"}, 1.0),
        ("0::/\n", {"cpu.max": "max 100000"}, None),
        # Version 1: both names of the mount, without a limit, and beside an empty version 2.
        (
            "4:cpu,cpuacct:/docker/c1\n1:memory:/\n",
            {"cpu,cpuacct/cpu.cfs_quota_us": "50000", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
            0.5,
        ),
        (
            "1:cpu:/c1\n0::/\n",
            {"cpu/c1/cpu.cfs_quota_us": "250000", "cpu/c1/cpu.cfs_period_us": "100000", "cgroup.procs": ""},
            2.5,
        ),
        ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        # Nothing that could be a limit.
        ("0::/\n", {}, None),
        ("", {}, None),
        ("not a line\n", {"cpu.max": "5 0"}, None),
        ("0::/\n", {"cpu.max": "many 100000"}, None),
    ],
)
def test_the_limit_of_a_container(
    tmp_path: Path, cgroup: str, files: dict[str, str], limit: float | None
) -> None:
    """It is the least of the group and of those around it, in the words of both versions of control groups."""
    assert cpu_limit(machine(tmp_path, cgroup, files)) == limit


def test_no_proc_is_no_limit(tmp_path: Path) -> None:
    """A system that says nothing of groups limits nothing."""
    assert cpu_limit(tmp_path) is None


@pytest.mark.parametrize(
    ("cores", "limit", "expected"),
    [(64, None, 64), (64, 1.0, 1), (64, 2.9, 2), (64, 0.1, 1), (2, 8.0, 2), (1, None, 1)],
)
def test_whole_cores_within_the_limit(cores: int, limit: float | None, expected: int) -> None:
    """A thread for a part of a core would be stopped for the rest of each period; one is always there."""
    assert core_count(cores, limit) == expected


@pytest.mark.parametrize(
    ("limit", "said", "told"),
    [
        (2.5, {}, {"OMP_NUM_THREADS": "2"}),
        (2.5, {"OMP_NUM_THREADS": "3"}, {"OMP_NUM_THREADS": "3"}),
        (None, {}, {}),
        (64.0, {}, {}),
    ],
)
def test_libraries_are_told_of_the_limit(
    monkeypatch: pytest.MonkeyPatch, limit: float | None, said: dict[str, str], told: dict[str, str]
) -> None:
    """Where it is below the cores of the kernel, unless the operator has chosen a number of threads."""
    monkeypatch.setattr(resources, "_own_limit", lambda: limit)
    monkeypatch.setattr(resources.os, "sched_getaffinity", lambda _: set(range(16)))
    limit_library_threads(said)
    assert said == told
