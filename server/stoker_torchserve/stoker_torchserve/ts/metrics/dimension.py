"""`ts.metrics.dimension`."""


class Dimension:
    """A name and a value that a metric is counted by."""

    def __init__(self, name: str, value: str) -> None:
        self.name = name
        self.value = value

    def __str__(self) -> str:
        return f"{self.name}:{self.value}"

    def to_dict(self) -> dict[str, str]:
        """Return the name and the value as a dict."""
        return {"Name": self.name, "Value": self.value}
