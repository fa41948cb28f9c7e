"""Runs a command, and writes the seconds of processors that it took, with all that it started, into a file.

Processes whose parents end before them, as those of killed servers do, become children of this one, and count too.
`python3 processor_time.py FILE COMMAND…` exits as the command does.
"""

import ctypes
import os
import resource
import subprocess
import sys
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36


def main(file: str, *command: str) -> int:
    """Run the command; returns its exit status."""
    if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1) != 0:
        sys.exit("The kernel hands orphans to nobody here.")
    process = subprocess.Popen(command)
    pid = 0
    while pid != process.pid:
        pid, status = os.wait()
    process.returncode = os.waitstatus_to_exitcode(status)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    Path(file).write_text(f"{usage.ru_utime + usage.ru_stime:.1f}")
    return abs(process.returncode)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
