"""The supervisor: starts the processes of a server from its settings, and decides which versions they serve.

What cannot be started or loaded raises an `OperatorError`.
"""
