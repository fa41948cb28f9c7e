"""Simulates devices, callers and requests under a virtual clock, with the planner of the server itself."""
