"""Models of PyTorch: a file is opened, described by running it, given the fastest form, and run on CPU or GPU."""
