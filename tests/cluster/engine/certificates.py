"""Certificates for a cluster of a few hours: authorities, servers' and clients' certificates, as PEM files."""

import datetime as dt
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID_FOR = dt.timedelta(days=30)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its key, as files."""

    certificate: Path
    key: Path


def _new_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = ec.generate_private_key(ec.SECP256R1())
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.touch(mode=0o600)
    path.write_bytes(text)
    return key


def new_signing_key(folder: Path, name: str) -> tuple[Path, Path]:
    """Private and public key of the issuer of service-account tokens."""
    private, public = folder / f"{name}.key", folder / f"{name}.pub"
    key = _new_key(private)
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return private, public


def _name(common: str, groups: Sequence[str] = ()) -> x509.Name:
    """A subject as Kubernetes reads it: the common name is the user, each organisation a group."""
    organisations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*organisations, x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


class Authority:
    """A certificate authority that keeps what it signs in one folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.certificate = folder / f"{name}.crt"
        self._subject = _name(name)
        self._key = _new_key(folder / f"{name}.key")
        self.key = folder / f"{name}.key"
        extensions = (
            (x509.BasicConstraints(ca=True, path_length=None), True),
            (_usage(signs=True), True),
        )
        self._write(self.certificate, self._subject, self._key.public_key(), extensions)

    def server(self, name: str, hosts: Sequence[str]) -> KeyPair:
        """A server's certificate for these names and addresses."""
        alternatives = x509.SubjectAlternativeName([_alternative(host) for host in hosts])
        return self._leaf(name, _name(name), ExtendedKeyUsageOID.SERVER_AUTH, (alternatives, False))

    def client(self, name: str, user: str, groups: Sequence[str] = ()) -> KeyPair:
        """A client's certificate; ``name`` names the files."""
        return self._leaf(name, _name(user, groups), ExtendedKeyUsageOID.CLIENT_AUTH)

    def _leaf(
        self,
        name: str,
        subject: x509.Name,
        purpose: x509.ObjectIdentifier,
        *more: tuple[x509.ExtensionType, bool],
    ) -> KeyPair:
        pair = KeyPair(self.folder / f"{name}.crt", self.folder / f"{name}.key")
        key = _new_key(pair.key)
        extensions = ((_usage(signs=False), True), (x509.ExtendedKeyUsage([purpose]), False), *more)
        self._write(pair.certificate, subject, key.public_key(), extensions)
        return pair

    def _write(
        self,
        path: Path,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        extensions: Sequence[tuple[x509.ExtensionType, bool]],
    ) -> None:
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + VALID_FOR)
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        certificate = builder.sign(self._key, hashes.SHA256())
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
