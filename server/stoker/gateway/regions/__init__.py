"""Shared memory of callers: what has been registered, and reading and writing it."""
