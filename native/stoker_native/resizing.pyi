from _typeshed import ReadableBuffer, WriteableBuffer

def resize_rgb(
    pixels: ReadableBuffer,
    height: int,
    width: int,
    resized: WriteableBuffer,
    new_height: int,
    new_width: int,
    /,
) -> None: ...
