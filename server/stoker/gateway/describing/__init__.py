"""What is said of the models that are served: their Swagger descriptions and the metrics."""
