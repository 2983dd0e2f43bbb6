"""A private certificate authority, and the certificates it signs."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from pathlib import Path

_DAY = dt.timedelta(days=1)


@dataclass(frozen=True)
class Pair:
    """A certificate's file and its key's."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates that end ``days`` from now; ``file`` holds its own."""

    def __init__(self, folder: Path, name: str = "private") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        own = self._builder(self._name, self._key.public_key(), 2)
        own = own.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        own = own.add_extension(_usage(signs=True), critical=True)
        own = own.add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
        self.file = folder / "ca.pem"
        self.file.write_bytes(own.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def sign(  # the parts of a certificate
        self,
        name: str,
        *,
        hosts: tuple[str, ...] = (),
        uris: tuple[str, ...] = (),
        days: float = 1,
        organization: str | None = None,
        password: bytes | None = None,
        file: str | None = None,
    ) -> Pair:
        """Make a key and a certificate for ``name``, in files called so or ``file``."""
        key = ec.generate_private_key(ec.SECP256R1())
        found = self._builder(_name(name, organization), key.public_key(), days)
        found = found.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        found = found.add_extension(_usage(signs=False), critical=True)
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        found = found.add_extension(x509.ExtendedKeyUsage(both), critical=False)
        names = [*map(_host, hosts), *map(x509.UniformResourceIdentifier, uris)]
        if names:
            found = found.add_extension(x509.SubjectAlternativeName(names), critical=False)
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        found = found.add_extension(signer, critical=False)
        pair = Pair(self._folder / f"{file or name}.crt", self._folder / f"{file or name}.key")
        pair.certificate.write_bytes(found.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        lock = serialization.NoEncryption() if password is None else serialization.BestAvailableEncryption(password)
        pair.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock))
        return pair

    def _builder(self, name: x509.Name, public: ec.EllipticCurvePublicKey, days: float) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        end = now + days * _DAY
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(now, end) - _DAY)
            .not_valid_after(end)
        )


def _name(common: str, organization: str | None = None) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, common)]
    if organization is not None:
        parts.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(parts)


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )
