"""ONNX models, run by ONNX Runtime."""
