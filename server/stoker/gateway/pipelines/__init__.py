"""Pipelines in a frontend: requests whose rows go from one model's arena to the next one's."""
