"""Launching runs: submission, slots, the runner of each run, and what follows and adopts runs."""
