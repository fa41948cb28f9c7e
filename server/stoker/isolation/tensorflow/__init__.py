"""The batch axis followed through the graph of a SavedModel."""
