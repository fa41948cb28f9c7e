"""What locust's users send, and how they read the answers."""
