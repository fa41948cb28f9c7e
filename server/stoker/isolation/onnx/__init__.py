"""The batch axis followed through the graph of an ONNX file."""
