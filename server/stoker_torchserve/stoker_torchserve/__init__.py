"""What TorchServe's users bring: model archives, handlers and the calls that they make."""
