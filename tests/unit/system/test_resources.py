"""Cores and memory within the limits of control groups."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from stoker.system import resources
from stoker.system.resources import (
    MemoryKills,
    core_count,
    cpu_limit,
    limit_library_threads,
    main_memory,
    require_memory,
)


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
    ("limit", "given_variables", "set_variables"),
    [
        (2.5, {}, {"OMP_NUM_THREADS": "2"}),
        (2.5, {"OMP_NUM_THREADS": "3"}, {"OMP_NUM_THREADS": "3"}),
        (None, {}, {}),
        (64.0, {}, {}),
    ],
)
def test_libraries_get_the_limit_of_cores(
    monkeypatch: pytest.MonkeyPatch,
    limit: float | None,
    given_variables: dict[str, str],
    set_variables: dict[str, str],
) -> None:
    """Where it is below the cores of the kernel, unless the operator has chosen a number of threads."""
    monkeypatch.setattr(resources, "_own_limit", lambda: limit)
    monkeypatch.setattr(resources.os, "sched_getaffinity", lambda _: set(range(16)))
    limit_library_threads(given_variables)
    assert given_variables == set_variables


IMPORTS_NUMPY = """
import os
from stoker.system.resources import ONE_BLAS_THREAD, defaults_set

with defaults_set(os.environ, ONE_BLAS_THREAD):
    import numpy
from threadpoolctl import threadpool_info
print([library["num_threads"] for library in threadpool_info()], os.environ.get("OPENBLAS_NUM_THREADS"))
"""


@pytest.mark.parametrize(("given", "printed"), [({}, "[1] None"), ({"OPENBLAS_NUM_THREADS": "2"}, "[2] 2")])
def test_numpy_has_one_thread_unless_the_operator_says_otherwise(
    given: dict[str, str], printed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And child processes that start later do not hear of it."""
    monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    command = [sys.executable, "-c", IMPORTS_NUMPY]
    ran = subprocess.run(command, env={**os.environ, **given}, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == printed


MIB = 1 << 20
MEMINFO = "MemTotal:       8192 kB\nMemFree:        100 kB\nMemAvailable:   4096 kB\n"
V1, V2 = "sys/fs/cgroup/memory", "sys/fs/cgroup"
NO_LIMIT = "9223372036854771712"


def v2(limit: int | str, used: int) -> dict[str, str]:
    """The files of a group of version 2."""
    return {"memory.max": f"{limit}\n", "memory.current": f"{used}\n"}


def v1(limit: int | str, used: int) -> dict[str, str]:
    """The files of a group of version 1."""
    return {"memory.limit_in_bytes": f"{limit}\n", "memory.usage_in_bytes": f"{used}\n"}


@pytest.mark.parametrize(
    ("membership", "groups", "expected"),
    [
        ("0::/\n", {}, (8 * MIB, 4 * MIB)),
        ("0::/\n", {V2: v2(3 * MIB, MIB)}, (3 * MIB, 2 * MIB)),
        ("0::/a/b\n", {f"{V2}/a/b": v2("max", MIB), f"{V2}/a": v2(2 * MIB, MIB)}, (2 * MIB, MIB)),
        ("0::/a/b\n", {f"{V2}/a/b": v2(MIB, 0), f"{V2}/a": v2(2 * MIB, 2 * MIB)}, (MIB, 0)),
        ("0::/a/b\n", {f"{V2}/a/c": v2(MIB, 0)}, (8 * MIB, 4 * MIB)),
        ("5:cpu,memory:/a\n0::/\n", {f"{V1}/a": v1(2 * MIB, 0), V1: v1(NO_LIMIT, 0)}, (2 * MIB, 2 * MIB)),
        ("4:memory:/docker/1\n", {V1: v1(MIB, 2 * MIB)}, (MIB, 0)),
        ("0::/../other\n", {V2: v2(2 * MIB, 0)}, (2 * MIB, 2 * MIB)),
    ],
    ids=["none", "v2", "an ancestor", "the smallest", "another", "v1", "hidden path", "outside"],
)
def test_the_memory_is_that_of_the_narrowest_group(
    tmp_path: Path, membership: str, groups: Mapping[str, Mapping[str, str]], expected: tuple[int, int]
) -> None:
    """Of the process's own group and of all above it, in both versions of control groups; or the machine's."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(MEMINFO)
    (tmp_path / "proc/self/cgroup").write_text(membership)
    for folder, files in groups.items():
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (tmp_path / folder / name).write_text(content)
    assert main_memory(tmp_path) == expected


def test_a_kernel_without_groups_has_its_memory(tmp_path: Path) -> None:
    """Nothing says which groups a process is in."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(MEMINFO)
    assert main_memory(tmp_path) == (8 * MIB, 4 * MIB)


def test_allocation_beyond_the_memory_is_refused_with_both_sizes(tmp_path: Path) -> None:
    """An allocation that does not fit is refused before it is made."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(f"MemTotal: {8 << 20} kB\nMemAvailable: {3 << 20} kB\n")
    require_memory(3 << 30, "two rows", tmp_path)
    with pytest.raises(MemoryError) as refused:
        require_memory((3 << 30) + 1, "two rows", tmp_path)
    assert str(refused.value) == "two rows would take 3.0 GiB of memory, of which 3.0 GiB can be had"


def test_each_kill_for_memory_explains_one_end() -> None:
    """Of processes that SIGKILL has ended, not of others, and of no more than the kernel has counted."""
    counted = 7
    kills = MemoryKills(lambda: counted)
    assert not kills.explain(-signal.SIGKILL)
    counted = 9
    assert [kills.explain(status) for status in (0, -signal.SIGTERM, None, 137)] == [False] * 4
    assert kills.explain(-signal.SIGKILL)
    assert kills.describe(-signal.SIGKILL) == "was killed by the kernel, out of memory"
    assert kills.describe(-signal.SIGKILL) == "ended with status -9"
