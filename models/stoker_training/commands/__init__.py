"""The subcommands of `stoker` that train digit classifiers."""
