"""Memory of the machine and of control groups, from the kernel's files."""

import pytest

from stoker_base import memory


@pytest.mark.parametrize(
    ("files", "kills", "limit"),
    [
        (
            {"/proc/self/cgroup": "0::/a/b", "/sys/fs/cgroup/a/b/memory.events": "oom 3\noom_kill 2\n"},
            2,
            None,
        ),
        (
            {"/proc/self/cgroup": "0::/", "/sys/fs/cgroup/memory.max": "max\n", "/proc/vmstat": "oom_kill 5"},
            5,
            None,
        ),
        (
            {
                "/proc/self/cgroup": "4:memory:/job\n0::/",
                "/sys/fs/cgroup/memory/job/memory.oom_control": "under_oom 0\noom_kill 1\n",
                "/sys/fs/cgroup/memory/job/memory.limit_in_bytes": "1048576\n",
            },
            1,
            1 << 20,
        ),
        ({}, 0, None),
    ],
)
def test_kills_for_memory_are_counted(files: dict[str, str], kills: int, limit: int | None) -> None:
    """By the control group of either version where it counts, else by the machine."""
    assert memory.kills_for_memory(files.get) == kills
    total = {**files, "/proc/meminfo": "MemTotal:       2048 kB\n"}
    assert memory.limit_bytes(total.get) == (limit or 2048 * 1024)
