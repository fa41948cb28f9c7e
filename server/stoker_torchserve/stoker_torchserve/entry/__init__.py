"""The entry script of TorchServe's archives: a folder of its own, for it becomes a place of imports."""
