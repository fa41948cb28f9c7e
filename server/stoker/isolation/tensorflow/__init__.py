"""Follows the batch axis through the graph of a SavedModel."""
