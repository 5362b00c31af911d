"""Certificates: what is due when, and that no handshake fails while they are replaced."""

import asyncio
import dataclasses
import ssl
import time

import pytest

from tessera.runtime import tls
from tessera.runtime.tls import (
    SKEW_SECONDS,
    Announce,
    Forget,
    Lifetimes,
    Material,
    NewAuthority,
    NewLeaf,
    Pair,
    Promote,
    Publish,
    ReloadingContext,
    Seen,
    Step,
    Wait,
    carry_out,
    expiry,
    new_authority,
    new_leaf,
    plan,
    read_material,
    same_bundle,
)

NOW = 1_800_000_000.0
NAMES = ("tessera-webhook.tessera-system.svc", "127.0.0.1")
LIVES = Lifetimes(authority=900.0, leaf=300.0, settle=30.0)


def fresh(now: float = NOW) -> Material:
    """What stands after a start from nothing."""
    return carry_out(NewAuthority(""), Material(), NAMES, LIVES, now)


def planned(material: Material, now: float, settled: float = 0.0, published: bytes | None = None) -> Step:
    bundle = material.bundle() if published is None else published
    return plan(Seen(now, material, bundle, settled), NAMES, LIVES)


def test_from_nothing_an_authority_and_a_leaf_are_made_and_published() -> None:
    assert planned(Material(), NOW) == NewAuthority("there is none")
    material = fresh()
    assert planned(material, NOW, published=b"") == Publish(material.bundle())
    assert planned(material, NOW) == Wait(200.0)  # the leaf is due at two thirds of its 300 s


def test_a_leaf_is_renewed_at_two_thirds_of_its_life() -> None:
    material = fresh()
    assert planned(material, NOW + 199) == Wait(1.0)
    assert planned(material, NOW + 200) == NewLeaf("it is due")
    renewed = carry_out(NewLeaf(""), material, NAMES, LIVES, NOW + 200)
    assert renewed.authority == material.authority
    assert renewed.leaf is not None
    assert expiry(renewed.leaf.certificate) == NOW + 500
    assert planned(renewed, NOW + 200) == Wait(200.0)


def with_leaf(material: Material, now: float) -> Material:
    return carry_out(NewLeaf(""), material, NAMES, LIVES, now)


def test_an_authority_is_announced_then_promoted_and_its_predecessor_forgotten_when_it_expires() -> None:
    old = with_leaf(fresh(), NOW + 599)
    assert planned(old, NOW + 599) == Wait(1.0)
    assert planned(old, NOW + 600) == Announce()
    announced = carry_out(Announce(), old, NAMES, LIVES, NOW + 600)
    assert (announced.authority, announced.leaf) == (old.authority, old.leaf)
    assert planned(announced, NOW + 600, 999.0, old.bundle()) == Publish(announced.bundle())
    assert planned(announced, NOW + 601, settled=1.0) == Wait(29.0)
    assert planned(announced, NOW + 630, settled=30.0) == Promote()
    promoted = carry_out(Promote(), announced, NAMES, LIVES, NOW + 630)
    assert promoted.authority == announced.following
    assert isinstance(planned(promoted, NOW + 630), Wait), "its first leaf is signed already"
    assert promoted.previous == _certificate(old)
    assert same_bundle(promoted.bundle(), announced.bundle())
    renewed = with_leaf(promoted, NOW + 829)
    assert planned(renewed, NOW + 899) == Wait(1.0)
    assert planned(renewed, NOW + 900) == Forget()
    assert carry_out(Forget(), renewed, NAMES, LIVES, NOW + 900).previous is None


def _certificate(material: Material) -> bytes:
    assert material.authority is not None
    return material.authority.certificate


def test_over_ten_lives_every_leaf_is_trusted_by_the_bundle_that_was_published_before() -> None:
    """The law that matters: at each step, what is served verifies against what has been published until then."""
    material, published, settled_at, now = fresh(), b"", NOW, NOW
    served: list[tuple[Pair, bytes]] = []
    promotions = 0
    while now < NOW + 10 * LIVES.authority:
        step = plan(Seen(now, material, published, now - settled_at), NAMES, LIVES)
        match step:
            case Publish(bundle):
                published, settled_at = bundle, now
            case Wait(seconds):
                now += min(seconds, 7.0)
            case _:
                assert not isinstance(step, NewAuthority)
                promotions += isinstance(step, Promote)
                material = carry_out(step, material, NAMES, LIVES, now)
        assert material.leaf is not None
        if published:
            served.append((material.leaf, published))
    assert promotions >= 12  # an authority serves 630 s of its 900
    for leaf, bundle in dict(served).items():
        verify(leaf, bundle)


def verify(leaf: Pair, bundle: bytes) -> None:
    """The leaf is signed by an authority of the bundle."""
    authorities = tls.x509.load_pem_x509_certificates(bundle)
    assert leaf.x509 is not None
    assert any(tls._signed_by(leaf.x509, authority) for authority in authorities)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda m: dataclasses.replace(m, authority=Pair(b"garbage", b"garbage")), "cannot be read"),
        (lambda m: dataclasses.replace(m, authority=Pair(_certificate(m), m.leaf.key)), "another's"),
        (lambda m: fresh(NOW - 901), "it expired"),
        (lambda m: fresh(NOW + SKEW_SECONDS + 60), "clock"),
    ],
)
def test_an_authority_that_cannot_be_used_is_replaced_at_once(spoil, why) -> None:
    step = planned(spoil(fresh()), NOW)
    assert isinstance(step, NewAuthority)
    assert why in step.why


def test_a_clock_that_is_behind_by_less_than_the_skew_accepts_what_was_made() -> None:
    assert isinstance(planned(fresh(), NOW - SKEW_SECONDS + 1), Wait)


def test_a_leaf_that_cannot_be_used_is_replaced() -> None:
    material, other = fresh(), fresh()
    cases = {
        "there is none": dataclasses.replace(material, leaf=None),
        "it cannot be read, or its key is another's": dataclasses.replace(material, leaf=Pair(b"x", b"y")),
        "another authority signed it": dataclasses.replace(material, leaf=other.leaf),
    }
    assert {why: planned(case, NOW) for why, case in cases.items()} == {why: NewLeaf(why) for why in cases}
    assert plan(Seen(NOW, material, material.bundle(), 0), ("other.svc",), LIVES) == NewLeaf(
        "it is for other names"
    )


def test_a_following_authority_that_is_garbage_is_forgotten_and_never_promoted() -> None:
    material = dataclasses.replace(fresh(), following=Pair(b"garbage", b"garbage"), previous=b"garbage")
    assert planned(material, NOW, settled=999) == Forget()
    assert carry_out(Forget(), material, NAMES, LIVES, NOW) == dataclasses.replace(
        material, following=None, previous=None
    )


def test_material_reads_back_from_a_secret() -> None:
    material = carry_out(Announce(), fresh(), NAMES, LIVES, NOW)
    material = dataclasses.replace(material, previous=_certificate(material))
    assert read_material(material.data()) == material
    assert read_material({}) == Material()
    assert read_material({"ca.crt": b"only half"}).authority is None


def test_bundles_are_the_same_in_any_order() -> None:
    one, two = fresh().bundle(), fresh().bundle()
    assert same_bundle(one + two, two + b"\n" + one)
    assert not same_bundle(one, one + two)
    assert not same_bundle(one, b"garbage")
    assert not same_bundle(one, b"")


def test_a_key_is_never_shown() -> None:
    pair = new_authority(900, NOW)
    assert "PRIVATE" not in repr(pair)
    assert "PRIVATE" not in repr(Material(pair))


@pytest.mark.parametrize(
    "lives", [(300.0, 301.0, 1.0), (900.0, 300.1, 1.0), (900.0, 0.0, 1.0), (900.0, 300.0, 150.0)]
)
def test_lifetimes_that_cannot_overlap_are_refused(lives: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="authority"):
        Lifetimes(*lives)


async def shake_hands(port: int, bundle: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A verified connection to 127.0.0.1."""
    context = ssl.create_default_context(cadata=bundle.decode())
    return await asyncio.open_connection("127.0.0.1", port, ssl=context)


def test_a_new_leaf_is_served_from_the_next_handshake_on_and_open_connections_stay() -> None:
    async def scene() -> tuple[bytes, list[bytes]]:
        now = time.time()
        first, second = new_authority(900, now), new_authority(900, now)
        context = ReloadingContext()
        assert context.load(new_leaf(first, NAMES, 300, now))

        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readline())
            await reader.read()
            writer.close()

        server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=context.context)
        port = server.sockets[0].getsockname()[1]
        reader, writer = await shake_hands(port, first.certificate)
        assert context.load(new_leaf(second, NAMES, 300, now))
        writer.write(b"still here\n")
        still = await reader.readline()
        later = await shake_hands(port, second.certificate)
        with pytest.raises(ssl.SSLCertVerificationError):
            await shake_hands(port, first.certificate)
        served = later[1].get_extra_info("ssl_object").getpeercert(binary_form=True)
        for end in (writer, later[1]):
            end.close()
            await end.wait_closed()
        server.close()
        await server.wait_closed()
        assert context.loaded is not None
        return still, [served, ssl.PEM_cert_to_DER_cert(context.loaded.certificate.decode())]

    still, (served, loaded) = asyncio.run(scene())
    assert still == b"still here\n"
    assert served == loaded


def test_a_pair_that_does_not_belong_together_is_refused_and_the_old_one_goes_on() -> None:
    material, other = fresh(), fresh()
    assert material.leaf is not None
    assert other.leaf is not None
    context = ReloadingContext()
    context.load(material.leaf)
    with pytest.raises(ValueError, match="belong together"):
        context.load(Pair(material.leaf.certificate, other.leaf.key))
    assert context.loaded == material.leaf
    assert not context.load(material.leaf), "the same pair again changes nothing"
