"""Bytes to tensors and back: pure functions, one module a protocol."""
