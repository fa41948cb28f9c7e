"""What Stoker needs of the machine under it: durable files, logs, installed packages, the ends of processes."""
