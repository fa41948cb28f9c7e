"""The supervisor: from settings to processes that serve, and which versions of models these serve."""
