"""The subcommands of `stoker` that speak as Azure does."""
