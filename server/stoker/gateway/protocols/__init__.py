"""What callers speak: the endpoints of each protocol, and who may read what they describe."""
