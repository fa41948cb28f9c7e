"""`ts.metrics`: a handler's own metrics."""
