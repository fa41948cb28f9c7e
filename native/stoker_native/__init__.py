"""What the Stoker server does in C++ where this is installed; it does the same without."""

from stoker_native._rows import float32_rows_into

__all__ = ["float32_rows_into"]
