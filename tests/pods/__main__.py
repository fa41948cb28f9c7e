"""Run the tests of this folder in namespaces of their own, and see to it that nothing of them stays.

`python -m tests.pods [OPTION OF PYTEST …]`. Interfaces, addresses, rules of iptables, mounts and processes are those
of the namespaces, and end with them; control groups and the folder of everything else are removed here.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.cluster import tools
from tests.pods import control_groups
from tests.pods.node import CNI, FOLDER, lacking

_UNSHARE: Final = ("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
_REMOVED_WITHIN_S: Final = 60.0


def _reason() -> str | None:
    """Why there cannot be a node on this machine; None if there can."""
    if os.geteuid() != 0:
        return "a node needs root"
    if absent := lacking():
        return f"there is no {', '.join(absent)}; {CNI} and containerd are packages of the distribution"
    tried = subprocess.run([*_UNSHARE, "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        return f"namespaces cannot be had: {tried.stderr.strip()}"
    return tools.build(tools.OF_A_NODE)


def main(arguments: list[str]) -> int:
    """Run the tests; that there cannot be a node is no failure."""
    if reason := _reason():
        print(f"skipped: {reason}")
        return 0
    # So that the end of this process is one that removes what there is.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    folder = Path(tempfile.mkdtemp(prefix="stoker-pods-"))
    control_groups.make(folder.name)
    try:
        command = [
            *_UNSHARE,
            sys.executable,
            "-m",
            "pytest",
            "-rs",
            "--timeout=1200",
        ]
        named = any(Path(argument.split("::")[0]).exists() for argument in arguments)
        ended = subprocess.run(
            [*command, *([] if named else ["tests/pods"]), *arguments],
            env=os.environ | {FOLDER: str(folder)},
            check=False,
        )
        return ended.returncode
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    """Remove the folder and the control group, whose killed processes may take a moment to end."""
    deadline_s = time.monotonic() + _REMOVED_WITHIN_S
    while not control_groups.remove(folder.name):
        if time.monotonic() > deadline_s:
            sys.exit(f"processes of the tests are still in the control group {folder.name}")
        time.sleep(0.1)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
