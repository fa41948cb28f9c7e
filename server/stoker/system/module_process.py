"""Runs a module as a process of its own: `python -m stoker.system.module_process MODULE ARGUMENT…`.

All that the module imports stays until the process ends. To look for garbage in it takes a tenth of the time of the
imports, and as much again each time that Python looks at all objects.
"""

import gc
import importlib
import sys


def main() -> int | None:
    """Import the module and call its `main`; returns the exit status."""
    sys.argv = sys.argv[1:]
    gc.disable()
    module = importlib.import_module(sys.argv[0])
    gc.freeze()
    gc.enable()
    status: int | None = module.main()
    return status


if __name__ == "__main__":
    sys.exit(main())
