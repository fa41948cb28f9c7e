"""GPUs: what their driver says of them, what can use them, and which one a device setting means."""
