"""TorchServe's model archives, handlers, settings and API."""
