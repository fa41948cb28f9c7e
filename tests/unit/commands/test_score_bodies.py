"""Files that `stoker score` sends, beside what tests/http/test_score_command.py sends."""

from pathlib import Path

from stoker.commands.score_bodies import media_type_of


def test_media_type_follows_the_name_and_is_bytes_for_unknown_names() -> None:
    """NumPy's arrays and WebP have theirs too."""
    names = ("a.JPG", "a.npy", "a.webp", "a.json", "a.wav", "a")
    assert [media_type_of(Path(name)) for name in names] == [
        *("image/jpeg", "application/x-npy", "image/webp", "application/json", "audio/x-wav"),
        "application/octet-stream",
    ]
