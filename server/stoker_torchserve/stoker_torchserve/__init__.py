"""TorchServe's model archives, handlers, settings and API (decision 58)."""
