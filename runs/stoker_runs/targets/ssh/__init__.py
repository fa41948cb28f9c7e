"""Compute targets that are reached by SSH: a machine with a shell and any Python from 3.6 up, nothing else."""
