"""`import stoker.azure` and `python -m stoker.azure`: the entrances for code made for Azure's Python SDK.

They lead into the distribution `stoker-azure`.
"""

from __future__ import annotations

import sys

from stoker.errors import OperatorError
from stoker.system.extensions import require_extension

try:
    _AZURE = require_extension("azure")
except OperatorError as error:
    if __name__ == "__main__":
        sys.stderr.write(f"python -m stoker.azure: {error}\n")
        raise SystemExit(2) from None
    raise ImportError(str(error)) from None
if __name__ == "__main__":
    raise SystemExit(_AZURE.run_program())

_AZURE.enter()
