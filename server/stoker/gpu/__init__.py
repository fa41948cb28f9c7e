"""GPUs: facts and readings from their driver, probes of runtimes that may use them, and the choice of a device."""
