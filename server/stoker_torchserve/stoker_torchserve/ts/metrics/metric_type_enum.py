"""`ts.metrics.metric_type_enum`."""

import enum


class MetricTypes(enum.Enum):
    """The kinds of metrics."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
