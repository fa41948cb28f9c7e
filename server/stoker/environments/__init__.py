"""The Python packages that a model requires: read from its file, compared with the installed ones, or installed.

Files that cannot be read and environments that cannot be built raise `EnvironmentUnusable`: its message names the
line, or ends with the installer's output.
"""
