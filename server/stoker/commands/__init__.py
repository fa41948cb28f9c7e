"""The `stoker` command, and its subcommands, one module each.

A command that fails raises an `OperatorError`, a wrong argument `InvalidSettings`.
"""
