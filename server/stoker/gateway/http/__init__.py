"""HTTP without scoring: heads, bodies, encodings and ids of requests, and the bytes of answers."""
