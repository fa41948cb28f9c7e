"""Contestants: servers and runtimes, their costs, and their turns."""
