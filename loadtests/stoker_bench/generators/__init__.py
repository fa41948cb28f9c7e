"""Load generators: requests, and the loops that send them and measure."""
