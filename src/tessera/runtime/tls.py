"""Certificates of our own: an authority, leaves that it signs, and when to replace which.

:func:`plan` decides and touches nothing; :func:`carry_out` makes the keys; :class:`ReloadingContext` serves the
leaf. The order in which an authority is replaced keeps every handshake verifiable at any moment:

1. a *following* authority is made and **published** beside the present one; the present one goes on signing;
2. once it has been published for ``settle`` seconds, it is *promoted* and signs the leaf;
3. its predecessor stays published until it expires, for whoever still serves a leaf of it.

Certificates are dated back by :data:`SKEW_SECONDS`, so that a peer whose clock is behind accepts them. Keys are
ECDSA P-256. This is the only module that imports ``cryptography``.
"""

import contextlib
import datetime as dt
import ipaddress
import os
import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

SKEW_SECONDS: Final = 3600
RENEW_AT: Final = 2 / 3
"""The part of its life after which a certificate is replaced."""
DAY: Final = 86400.0


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """How long certificates live, and how long a new authority is published before it signs; all in seconds.

    A leaf lives a third of its authority's life at most, so that it never outlives it.
    """

    authority: float = 730 * DAY
    leaf: float = 90 * DAY
    settle: float = 120.0

    def __post_init__(self) -> None:
        if not 0 < self.leaf <= self.authority / 3:
            raise ValueError(
                f"a leaf of {self.leaf} s needs an authority of {3 * self.leaf} s, not {self.authority}"
            )
        if not 0 <= self.settle < self.authority / 6:
            raise ValueError(f"an authority of {self.authority} s cannot be announced {self.settle} s ahead")


@dataclass(frozen=True)
class Pair:
    """A certificate and its private key, in PEM. It is ``sound`` when both can be read and belong together."""

    certificate: bytes
    key: bytes

    @cached_property
    def x509(self) -> x509.Certificate | None:
        """The certificate; ``None`` where it cannot be read."""
        return _read(self.certificate)

    @cached_property
    def private(self) -> ec.EllipticCurvePrivateKey | None:
        """The key; ``None`` where it cannot be read or is of another kind."""
        try:
            key = serialization.load_pem_private_key(self.key, None)
        except (ValueError, TypeError):
            return None
        return key if isinstance(key, ec.EllipticCurvePrivateKey) else None

    @property
    def sound(self) -> bool:
        """Whether certificate and key can be read and belong together."""
        if self.x509 is None or self.private is None:
            return False
        return self.x509.public_key() == self.private.public_key()

    def __repr__(self) -> str:
        return f"Pair({self.certificate!r}, key=...)"


@dataclass(frozen=True, slots=True)
class Material:
    """All that the replicas of a server share, kept in one Secret."""

    authority: Pair | None = None
    following: Pair | None = None
    previous: bytes | None = None
    leaf: Pair | None = None

    def bundle(self) -> bytes:
        """The authorities to trust, the signing one first."""
        pairs = (self.authority, self.following)
        certificates = [pair.certificate for pair in pairs if pair] + ([self.previous] if self.previous else [])
        return b"".join(certificate.rstrip(b"\n") + b"\n" for certificate in certificates)

    def data(self) -> dict[str, bytes]:
        """As the data of a Secret."""
        parts = (("ca", self.authority), ("next-ca", self.following), ("tls", self.leaf))
        held = {f"{name}.{ext}": text for name, pair in parts if pair for ext, text in _files(pair)}
        return held | ({"previous-ca.crt": self.previous} if self.previous else {})


def read_material(data: Mapping[str, bytes]) -> Material:
    """What :meth:`Material.data` wrote; what is missing or only half there is ``None``."""

    def pair(name: str) -> Pair | None:
        certificate, key = data.get(f"{name}.crt"), data.get(f"{name}.key")
        return Pair(certificate, key) if certificate and key else None

    return Material(pair("ca"), pair("next-ca"), data.get("previous-ca.crt") or None, pair("tls"))


@dataclass(frozen=True, slots=True)
class NewAuthority:
    """Start over: there is no authority that could be used. ``why`` is for the log."""

    why: str


@dataclass(frozen=True, slots=True)
class Announce:
    """Make the following authority."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Let clients trust ``bundle``, before anything else happens."""

    bundle: bytes


@dataclass(frozen=True, slots=True)
class Promote:
    """Let the following authority sign, a new leaf first."""


@dataclass(frozen=True, slots=True)
class NewLeaf:
    """Sign a new leaf. ``why`` is for the log."""

    why: str


@dataclass(frozen=True, slots=True)
class Forget:
    """Drop authorities that expired or cannot be read."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do for ``seconds``."""

    seconds: float


Step = NewAuthority | Announce | Publish | Promote | NewLeaf | Forget | Wait


@dataclass(frozen=True, slots=True)
class Seen:
    """What a plan starts from. ``now`` is wall time; ``settled`` is for how many seconds (of the monotonic clock)
    the published bundle has been seen to be the wanted one.
    """

    now: float
    material: Material
    published: bytes
    settled: float


def plan(seen: Seen, names: Sequence[str], lifetimes: Lifetimes) -> Step:
    """The next step; after it was carried out and written, plan again, until :class:`Wait`."""
    material, now = seen.material, seen.now
    why = _unusable(material.authority, now)
    if material.authority is None or why:
        return NewAuthority(why or "there is none")
    if _forgettable(material, now):
        return Forget()
    if not same_bundle(material.bundle(), seen.published):
        return Publish(material.bundle())
    why = _stale_leaf(material, names, now)
    if why:
        return NewLeaf(why)
    if material.following is None:
        if now >= renewal(material.authority):
            return Announce()
    elif seen.settled >= lifetimes.settle:
        return Promote()
    return Wait(_patience(seen, lifetimes))


def carry_out(step: Step, material: Material, names: Sequence[str], lifetimes: Lifetimes, now: float) -> Material:
    """``material`` after ``step``; the same for steps that change none (:class:`Publish`, :class:`Wait`)."""
    match step:
        case NewAuthority():
            authority = new_authority(lifetimes.authority, now)
            return Material(authority, leaf=new_leaf(authority, names, lifetimes.leaf, now))
        case Announce():
            return replace(material, following=new_authority(lifetimes.authority, now))
        case Promote() if material.following and material.authority:
            leaf = new_leaf(material.following, names, lifetimes.leaf, now)
            return Material(material.following, None, material.authority.certificate, leaf)
        case NewLeaf() if material.authority:
            return replace(material, leaf=new_leaf(material.authority, names, lifetimes.leaf, now))
        case Forget():
            following = None if _unusable(material.following, now) else material.following
            return replace(material, following=following, previous=_living(material.previous, now))
    return material


def new_authority(lifetime: float, now: float) -> Pair:
    """A self-signed authority. Each has a name of its own, so that none is taken for another."""
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"tessera-ca-{serial:x}"[:40])])
    builder = (
        _dated(x509.CertificateBuilder(serial_number=serial), now, now + lifetime)
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return _pair(builder.sign(key, hashes.SHA256()), key)


def new_leaf(authority: Pair, names: Sequence[str], lifetime: float, now: float) -> Pair:
    """A server's certificate for ``names`` (DNS names and addresses), signed by ``authority``, which is sound."""
    issuer, signer = authority.x509, authority.private
    assert issuer is not None
    assert signer is not None
    key = ec.generate_private_key(ec.SECP256R1())
    until = min(now + lifetime, issuer.not_valid_after_utc.timestamp())
    builder = (
        _dated(x509.CertificateBuilder(serial_number=x509.random_serial_number()), now, until)
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    return _pair(builder.sign(signer, hashes.SHA256()), key)


def renewal(pair: Pair) -> float:
    """The wall time at which a sound certificate is due for replacement."""
    certificate = pair.x509
    assert certificate is not None
    made = certificate.not_valid_before_utc.timestamp() + SKEW_SECONDS
    return made + RENEW_AT * (certificate.not_valid_after_utc.timestamp() - made)


def expiry(certificate: bytes) -> float | None:
    """The wall time at which a certificate (PEM) ends; ``None`` where it cannot be read."""
    read = _read(certificate)
    return read.not_valid_after_utc.timestamp() if read else None


def same_bundle(one: bytes, other: bytes) -> bool:
    """Whether two bundles trust the same authorities, whatever their order and white space."""
    return _fingerprints(one) == _fingerprints(other)


class ReloadingContext:
    """A server's TLS context whose certificate is replaced in place: connections that stand are left alone."""

    def __init__(self) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.num_tickets = 0  # a resumed session would outlive the certificate that it began with
        self.loaded: Pair | None = None

    def load(self, pair: Pair) -> bool:
        """Serve ``pair`` from the next handshake on; false where it is served already.

        Raises ``ValueError`` where certificate and key cannot be used together; what was served goes on then.
        """
        if pair == self.loaded:
            return False
        if not pair.sound:
            raise ValueError("the certificate and its key cannot be read, or do not belong together")
        with _in_memory(pair.key + b"\n" + pair.certificate) as path:
            self.context.load_cert_chain(path)
        self.loaded = pair
        return True


@contextlib.contextmanager
def _in_memory(text: bytes) -> Iterator[str]:
    """A path to ``text`` that no disk ever sees: Python loads certificates from files only."""
    file = os.memfd_create("tessera-tls", os.MFD_CLOEXEC)
    try:
        os.write(file, text)
        yield f"/proc/self/fd/{file}"
    finally:
        os.close(file)


def _unusable(pair: Pair | None, now: float) -> str:
    """Why an authority or a leaf cannot be used; empty when it can, or when there is none."""
    if pair is None:
        return ""
    if not pair.sound or pair.x509 is None:
        return "it cannot be read, or its key is another's"
    if now >= pair.x509.not_valid_after_utc.timestamp():
        return "it expired"
    if now < pair.x509.not_valid_before_utc.timestamp():
        return "it is not valid yet: the clock of whoever made it was ahead"
    return ""


def _stale_leaf(material: Material, names: Sequence[str], now: float) -> str:
    leaf, authority = material.leaf, material.authority
    why = _unusable(leaf, now)
    if leaf is None or authority is None or leaf.x509 is None or authority.x509 is None:
        return why or "there is none"
    if why:
        return why
    if not _signed_by(leaf.x509, authority.x509):
        return "another authority signed it"
    if _names(leaf.x509) != set(names):
        return "it is for other names"
    return "it is due" if now >= renewal(leaf) else ""


def _forgettable(material: Material, now: float) -> bool:
    gone = material.previous is not None and _living(material.previous, now) is None
    return gone or bool(_unusable(material.following, now))


def _living(certificate: bytes | None, now: float) -> bytes | None:
    until = expiry(certificate) if certificate else None
    return certificate if until is not None and until > now else None


def _patience(seen: Seen, lifetimes: Lifetimes) -> float:
    """Seconds until something is due, a second at least."""
    material, now = seen.material, seen.now
    assert material.authority is not None
    assert material.leaf is not None
    due = [renewal(material.leaf) - now]
    due.append(lifetimes.settle - seen.settled if material.following else renewal(material.authority) - now)
    if material.previous:
        due.append((expiry(material.previous) or now) - now)
    return max(1.0, min(due))


def _signed_by(leaf: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _names(certificate: x509.Certificate) -> set[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return {*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))}


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _fingerprints(bundle: bytes) -> set[bytes] | None:
    """What a bundle trusts; ``None`` where it cannot be read (which equals no bundle that was asked for)."""
    if not bundle.strip():
        return set()
    try:
        return {
            certificate.fingerprint(hashes.SHA256()) for certificate in x509.load_pem_x509_certificates(bundle)
        }
    except ValueError:
        return None


def _read(certificate: bytes) -> x509.Certificate | None:
    try:
        return x509.load_pem_x509_certificate(certificate)
    except ValueError:
        return None


def _dated(builder: x509.CertificateBuilder, now: float, until: float) -> x509.CertificateBuilder:
    return builder.not_valid_before(_when(now - SKEW_SECONDS)).not_valid_after(_when(until))


def _when(wall: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(wall, dt.UTC)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Pair(certificate.public_bytes(pem), secret)


def _files(pair: Pair) -> tuple[tuple[str, bytes], tuple[str, bytes]]:
    return ("crt", pair.certificate), ("key", pair.key)
