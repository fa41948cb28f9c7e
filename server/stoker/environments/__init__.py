"""The Python packages that a model asks for: read from its file, compared with what is there, or installed."""
