"""Servers on a Ray cluster: Ray allocates GPUs and restarts processes; rows do not pass through it."""

from stoker_cluster.ray.app import app

__all__ = ["app"]
