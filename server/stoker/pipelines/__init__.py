"""Pipelines: models whose outputs are the inputs of others, as they are written, checked and joined. Pure."""
