"""The supervisor: starts the processes of a server from its settings, and decides which versions they serve."""
