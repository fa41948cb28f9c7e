"""Runs a command, and writes the seconds of processors that it took, with all that it started, into a file.

Processes whose parents end before them, as those of killed servers do, become children of this one, and count too.
`python3 processor_time.py FILE COMMAND…` exits as the command does.
"""

import contextlib
import ctypes
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
ENDING_S = 3.0


def main(file: str, *command: str) -> int:
    """Run the command; returns its exit status."""
    if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1) != 0:
        sys.exit("The kernel hands orphans to nobody here.")
    process = subprocess.Popen(command)
    pid = 0
    while pid != process.pid:
        pid, status = os.wait()
    process.returncode = os.waitstatus_to_exitcode(status)
    wait_for_ending_processes()
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    Path(file).write_text(f"{usage.ru_utime + usage.ru_stime:.1f}")
    return abs(process.returncode)


def wait_for_ending_processes() -> None:
    """Wait for processes that the command leaves, such as clusters that end with their driver; not for daemons."""
    give_up_s = time.monotonic() + ENDING_S
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < give_up_s:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
