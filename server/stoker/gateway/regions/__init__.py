"""Shared memory of callers: the table of registered regions, and how they are read and written."""
