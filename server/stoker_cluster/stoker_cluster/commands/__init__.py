"""The subcommands of `stoker` for clusters."""
