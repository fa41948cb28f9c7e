"""Shared memory of callers: the table of what is registered, and reading and writing it."""
