"""Files of TLS and of identities that do not fit: one sentence each, before anything is opened."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import pytest

from cache_server.service import Service
from cache_server.settings import Settings
from cache_server.tls import TlsFiles
from client.errors import ConfigurationError
from tests.support.certificates import Authority

if TYPE_CHECKING:
    from pathlib import Path

CERTIFICATE_RULE = '[[certificate.rule]]\nwhen = { "subject.CN" = "x" }\nscopes = ["read"]\n'


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def _open(settings: Settings) -> ssl.SSLContext | None:
    found = TlsFiles.from_settings(settings)
    return None if found is None else found.context()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"tls_cert": "absent"}, "No such file"),
        ({"tls_cert": "text"}, "expected a certificate with its chain and its key"),
        ({"tls_cert": "cert", "tls_key": "text"}, "expected a certificate with its chain and its key"),
        ({"tls_cert": "cert", "tls_key": "other_key"}, "another key"),
        ({"tls_cert": "cert", "tls_key": "locked_key"}, "cannot be used"),
        ({"tls_cert": "folder", "tls_key": "key"}, "cannot be used"),
        ({"tls_key": "key"}, "add --tls-cert"),
        ({"tls_client_ca": "ca"}, "add --tls-cert"),
        ({"tls_client_mode": "required"}, "add --tls-cert"),
        ({"tls_cert": "cert", "tls_key": "key", "tls_client_mode": "required"}, "go together"),
        ({"tls_cert": "cert", "tls_key": "key", "tls_client_ca": "ca"}, "go together"),
        ({"tls_cert": "cert", "tls_key": "key", "tls_client_ca": "text", "tls_client_mode": "optional"}, "client-ca"),
        ({"tls_cert": "cert", "tls_key": "key", "tls_client_ca": "absent", "tls_client_mode": "optional"}, "No such"),
    ],
)
def test_files_that_do_not_fit_are_refused_by_their_options(
    authority: Authority, tmp_path: Path, given: dict[str, str], sentence: str
) -> None:
    (tmp_path / "text").write_text("text")
    pair = authority.sign("fits")
    files = {
        "absent": tmp_path / "absent",
        "text": tmp_path / "text",
        "folder": tmp_path,
        "cert": pair.certificate,
        "key": pair.key,
        "other_key": authority.sign("other").key,
        "locked_key": authority.sign("locked", password=b"secret").key,
        "ca": authority.file,
    }
    settings = Settings(**{name: files.get(value, value) for name, value in given.items()})
    with pytest.raises(ConfigurationError, match=sentence) as caught:
        _open(settings)
    assert "\n" not in str(caught.value)


def test_a_pair_in_two_files_or_in_one_is_taken_from_tls_1_2_on(authority: Authority, tmp_path: Path) -> None:
    pair = authority.sign("two")
    both = tmp_path / "both.pem"
    both.write_bytes(pair.certificate.read_bytes() + pair.key.read_bytes())
    for given in ({"tls_cert": pair.certificate, "tls_key": pair.key}, {"tls_cert": both}):
        context = _open(Settings(**given))
        assert context is not None
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert _open(Settings()) is None


def test_rules_for_certificates_that_nobody_asks_for_are_a_mistake(tmp_path: Path) -> None:
    rules = tmp_path / "identity.toml"
    rules.write_text(CERTIFICATE_RULE)
    with pytest.raises(ConfigurationError, match="--tls-client-mode"):
        Service.open(Settings(data_dir=tmp_path / "data", identity_file=rules))
