"""Every metric, declared once; counters in shared memory, read at scrape."""
