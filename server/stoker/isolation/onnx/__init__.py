"""Follows the batch axis through the graph of an ONNX file."""
