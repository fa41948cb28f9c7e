"""The device process: models on a device, the threads that run their batches."""
