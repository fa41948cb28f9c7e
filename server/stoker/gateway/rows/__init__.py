"""The rows of a device process as a frontend uses them: leased, filled, queued, read, and freed."""
