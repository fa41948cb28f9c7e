"""The subcommands of `stoker` that measure."""
