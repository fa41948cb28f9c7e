"""Simulates devices, callers and requests under a virtual clock, with the batching scheduler of the server itself."""
