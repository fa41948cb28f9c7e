"""Files that `stoker score` sends, beside what tests/http/test_score_command.py sends."""

from pathlib import Path

from stoker.commands.score_bodies import is_image, media_type_of


def test_media_type_follows_the_name_and_is_bytes_for_unknown_names() -> None:
    """NumPy's arrays and WebP have theirs too."""
    names = ("a.JPG", "a.npy", "a.webp", "a.json", "a.wav", "a")
    assert [media_type_of(Path(name)) for name in names] == [
        *("image/jpeg", "application/x-npy", "image/webp", "application/json", "audio/x-wav"),
        "application/octet-stream",
    ]


def test_image_is_known_by_its_name_or_its_first_bytes(tmp_path: Path) -> None:
    """Scripts may take kinds of images that the server does not decode; a photo may have no suffix."""
    contents = {
        "a.tiff": b"II*",
        "photo": b"\xff\xd8\xff\xe0",
        "a.json": b"[1]",
        "rows": b"[1]",
        "a.npy": b"",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    assert [name for name in contents if is_image(tmp_path / name)] == ["a.tiff", "photo"]
