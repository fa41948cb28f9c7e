"""`ts.metrics.metric_cache_errors`: the errors of `context.metrics`."""


class MetricsCacheTypeError(TypeError):
    """An argument has another type."""


class MetricsCacheValueError(ValueError):
    """An argument has a value that metrics cannot have."""


class MetricsCacheKeyError(KeyError):
    """There is no such metric."""
