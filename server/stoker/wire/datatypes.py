"""The names of dtypes in the Open Inference Protocol v2 and in Triton's configurations."""

from __future__ import annotations

from typing import Final

DATATYPES: Final = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "bfloat16": "BF16",
    "float32": "FP32",
    "float64": "FP64",
    "string": "BYTES",
}
"""The protocol's name of each dtype."""
TRITON_DTYPES: Final = {
    f"TYPE_{'STRING' if datatype == 'BYTES' else datatype}": dtype for dtype, datatype in DATATYPES.items()
}
"""The dtypes by their names in Triton's configurations."""
