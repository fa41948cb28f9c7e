"""Descriptions of the served models: Swagger, Triton's model configuration, and metrics."""
