"""Servers on a Ray cluster: Ray finds the GPUs and starts processes again; no row goes through it."""

from stoker.ray.app import app

__all__ = ["app"]
