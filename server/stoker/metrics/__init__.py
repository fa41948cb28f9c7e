"""Declares every metric once, and keeps the counters in shared memory, which is read at scrape."""
