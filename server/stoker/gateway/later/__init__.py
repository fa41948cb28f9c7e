"""Requests that are answered later: a spool on disk, its runner, and callbacks."""
