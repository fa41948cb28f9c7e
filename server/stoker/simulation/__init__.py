"""Devices, callers and their requests under a virtual clock, around the very planner that serves."""
