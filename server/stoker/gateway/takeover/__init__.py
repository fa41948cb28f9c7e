"""What a frontend does so that versions can be compared: it keeps samples of requests, and runs them again."""
