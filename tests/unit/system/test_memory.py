"""The memory that a process may use, read in trees of files as the kernel shows them."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from stoker.system.resources import MemoryKills, main_memory, require_memory

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


def test_what_does_not_fit_is_refused_with_both_sizes(tmp_path: Path) -> None:
    """Before it is made; what fits is not."""
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
