"""The subcommands of `stoker`, one module each."""
