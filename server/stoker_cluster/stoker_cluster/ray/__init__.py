"""Servers on a Ray cluster: Ray allocates GPUs and restarts processes; rows do not pass through it."""
