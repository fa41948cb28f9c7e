"""`ts.torch_handler`: TorchServe's default handlers. They import PyTorch when they are used."""
