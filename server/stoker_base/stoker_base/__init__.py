"""Modules that the server and the agent of runs share: Python's standard library alone, for Python 3.6 and newer.

`trees` fills and removes folders whose names others chose. `memory` reads limits, and how many processes the kernel
killed for memory. `boot` identifies the machine's current boot. `package_modules` lists the modules of installed
packages. `former_names` and `tensorflow_v1` keep old scripts and pickles working. All of them travel with each run in
the agent's archive.
"""

__version__ = "0.1.0"
