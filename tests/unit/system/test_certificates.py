"""Certificates of ports: valid files, their facts, and their replacement."""

from __future__ import annotations

import logging
import ssl
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.certificates import Authority, make_pair, replace_pair

from stoker.errors import InvalidSettings
from stoker.system.certificates import FollowedCertificate, TlsFiles, read_certificate

DAY_S = 86_400


def test_facts_of_a_certificate_are_read(tmp_path: Path) -> None:
    """The end, the names and whether it is self-signed are read."""
    certificate = read_certificate(make_pair(tmp_path, "a.example", "10.0.0.7", days=10))
    assert abs(certificate.expires_s - time.time() - 10 * DAY_S) < DAY_S
    assert certificate.names == ("a.example", "10.0.0.7")
    assert certificate.self_signed
    assert certificate.context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_one_that_an_authority_has_signed_does_not_vouch_for_itself(tmp_path: Path) -> None:
    """Callers then need the authority, and not this file."""
    certificate = read_certificate(make_pair(tmp_path, authority=Authority.made(tmp_path)))
    assert not certificate.self_signed
    assert certificate.names == ("localhost", "127.0.0.1")


def test_the_end_of_an_expired_one_is_known_too(tmp_path: Path) -> None:
    """It can be used, by callers who do not look; the operator is to know."""
    assert 0 < read_certificate(make_pair(tmp_path, days=-3)).expires_s < time.time() - 2 * DAY_S


def test_files_that_cannot_be_used_are_named_with_the_reason(tmp_path: Path) -> None:
    """A missing file, a key of another certificate, one with a password, no PEM, and authorities that are none."""
    pair, other = make_pair(tmp_path), make_pair(tmp_path, stem="other")
    locked = make_pair(tmp_path, password="secret", stem="locked")
    text = tmp_path / "text.pem"
    text.write_text("no certificate\n")
    for files, reason in [
        (replace(pair, key=tmp_path / "none.key"), f"No such file or directory ({tmp_path / 'none.key'})"),
        (replace(pair, key=other.key), "the key is of another certificate"),
        (locked, f"the key has a password, .* openssl pkey -in {locked.key} -out NEW_KEY"),
        (replace(pair, certificate=text), "both have to be PEM files"),
        (replace(pair, client_ca=text), f"the authorities in {text}, .* it has to be a PEM file"),
    ]:
        with pytest.raises(InvalidSettings, match=reason.replace("(", r"\(").replace(")", r"\)")):
            read_certificate(files)


def test_new_pair_is_used_once_its_files_are_stable(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Certificate and key are not replaced in one step, so they are read one look later."""
    files = make_pair(tmp_path, "old.example")
    followed = FollowedCertificate(files, ["http/1.1"])
    before = followed.current
    followed.reload_if_changed()
    assert followed.current is before
    replace_pair(files, tmp_path, "new.example")
    followed.reload_if_changed()
    assert followed.current is before
    with caplog.at_level(logging.INFO):
        followed.reload_if_changed()
    assert followed.current.names == ("new.example",)
    assert "was exchanged" in caplog.text


def test_a_broken_pair_is_logged_once_and_the_old_one_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Until a whole one is there, which is taken."""
    files = make_pair(tmp_path, "old.example")
    followed = FollowedCertificate(files, ["http/1.1"])
    key = files.key.read_bytes()
    files.key.unlink()
    for _ in range(4):
        followed.reload_if_changed()
    assert followed.current.names == ("old.example",)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "the certificate stays as it was: " in caplog.text
    files.key.write_bytes(key)
    before = followed.current
    for _ in range(2):
        followed.reload_if_changed()
    assert followed.current is not before


def test_all_files_are_followed(tmp_path: Path) -> None:
    """The authorities of callers too."""
    authority, other = Authority.made(tmp_path), Authority.made(tmp_path, "other")
    pair = make_pair(tmp_path)
    files = TlsFiles(pair.certificate, pair.key, authority.file)
    followed = FollowedCertificate(files, ["http/1.1"])
    before = followed.current
    other.file.replace(authority.file)
    for _ in range(2):
        followed.reload_if_changed()
    assert followed.current is not before
