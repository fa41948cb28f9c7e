"""Whether a server does what the simulator says: `stoker bench --agreement`."""
