"""The subcommands of `stoker` that measure and simulate."""
