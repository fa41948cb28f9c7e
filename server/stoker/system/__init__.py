"""The machine under Stoker: durable files, logs, installed packages, the ends of processes."""
