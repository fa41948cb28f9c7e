"""ONNX models, by ONNX Runtime: the file is rewritten where that pays, opened as sessions, and run as executions."""
