"""Parts of the Stoker server in C++: it uses them where they are installed, and does the same without them."""

from stoker_native._rows import float32_rows_into

__all__ = ["float32_rows_into"]
