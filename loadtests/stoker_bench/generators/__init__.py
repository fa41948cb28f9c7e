"""What asks: requests, and the loops that send them and take the time."""
