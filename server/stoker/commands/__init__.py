"""The `stoker` command, and its subcommands, one module each.

A command that cannot do what it was asked raises an `OperatorError`, a wrong argument `InvalidSettings`.
"""
