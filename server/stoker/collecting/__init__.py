"""Collection of requests and answers: what is collected, the files, and their size limits."""
