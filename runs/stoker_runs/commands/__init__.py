"""The subcommands of `stoker` for training runs."""
