"""The process that owns memory of the first GPU and follows commands, a line each, as clients of CUDA do.

`python owner.py LIBCUDART BYTES` writes the handle in Base64; then `write OFFSET HEX` and `read OFFSET BYTES` are
answered by a line each. It ends with its input.
"""

from __future__ import annotations

import base64
import ctypes
import sys


def check(code: int) -> None:
    """Fail where CUDA does."""
    if code:
        raise SystemExit(f"CUDA error {code}")


def main() -> None:
    """Take the memory, and serve."""
    cuda, size_bytes = ctypes.CDLL(sys.argv[1]), int(sys.argv[2])
    address, handle = ctypes.c_void_p(), (ctypes.c_char * 64)()
    check(cuda.cudaSetDevice(0))
    check(cuda.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(size_bytes)))
    check(cuda.cudaIpcGetMemHandle(ctypes.byref(handle), address))
    say(base64.b64encode(bytes(handle)).decode())
    for line in sys.stdin:
        verb, offset, rest = line.split()
        at = ctypes.c_void_p((address.value or 0) + int(offset))
        if verb == "write":
            content = bytes.fromhex(rest)
            check(cuda.cudaMemcpy(at, content, ctypes.c_size_t(len(content)), 1))
            check(cuda.cudaStreamSynchronize(None))
            say("written")
        else:
            got = ctypes.create_string_buffer(int(rest))
            check(cuda.cudaMemcpy(got, at, ctypes.c_size_t(int(rest)), 2))
            say(got.raw.hex())
    check(cuda.cudaFree(address))


def say(text: str) -> None:
    """Write a line."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
