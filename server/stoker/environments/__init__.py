"""The Python packages that a model requires: read from its file, compared with the installed ones, or installed."""
