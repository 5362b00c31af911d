"""Another share on the same devices: what it is, and whether there is room."""

import pytest

from builders import a_device
from tessera.allocator.grants import placement_of
from tessera.allocator.resize import Room, Short, grows, most, placed_again, resized, room_of, shortages
from tessera.core.placement import Placement, Reason
from tessera.core.request import Claim, Container, Pod, Request
from tessera.core.share import ComputeMilli, ComputeTflops, MemoryFraction, MemoryMiB, ShareSpec

G0, G1 = a_device("g0", 16000), a_device("g1", 40000, index=1)
DEVICES = {"g0": G0, "g1": G1}


def a_spec(mib: int, milli: int, *, exclusive: bool = False) -> ShareSpec:
    memory, compute = MemoryMiB(mib), ComputeMilli(milli)
    return ShareSpec(memory, memory, compute, compute, exclusive=exclusive)


def a_pod(*claims: Claim, uid: str = "u") -> Pod:
    names = dict.fromkeys(name for claim in claims for name in claim.containers)
    return Pod("default", "p", uid, tuple(Container(name) for name in names), Request(claims))


def held(pod: Pod, *chosen: list[object]) -> Placement:
    assert pod.request
    return placement_of(pod, "n", pod.request.claims, chosen)  # type: ignore[arg-type]


def test_what_is_named_changes_and_the_rest_stays() -> None:
    spec = a_spec(1000, 300)
    assert resized(spec, MemoryMiB(2000), None) == a_spec(2000, 300)
    assert resized(spec, None, 400) == a_spec(1000, 400)
    assert resized(spec, None, None) == spec


def test_a_whole_device_is_held_alone_no_more() -> None:
    assert resized(a_spec(1000, 1000, exclusive=True), None, 500) == a_spec(1000, 500)


def test_the_same_request_again_is_the_same_placement() -> None:
    """Three claims: two containers share a device each, and one of them has a second claim over two devices."""
    share = a_spec(1000, 100)
    pod = a_pod(Claim(("a", "b"), 1, share), Claim(("b",), 2, share), Claim(("c",), 1, share))
    placement = held(pod, [G1], [G0, G1], [G0])
    assert placed_again(pod, placement, DEVICES) == placement


def test_a_part_of_a_device_is_a_part_of_the_very_device() -> None:
    before = a_pod(Claim(("a",), 2, a_spec(1000, 100)))
    half = ShareSpec(MemoryFraction(500), MemoryFraction(500), ComputeMilli(100), ComputeMilli(100))
    found = placed_again(a_pod(Claim(("a",), 2, half)), held(before, [G1, G0]), DEVICES)
    assert found is not None
    assert [(c.uuid, c.memory_mib) for c in found.charges] == [("g1", 20000), ("g0", 8000)]


@pytest.mark.parametrize(
    ("claims", "devices"),
    [
        ((Claim(("a",), 2, a_spec(1, 1)),), ("g0",)),
        ((Claim(("a",), 1, a_spec(1, 1)),), ("g0", "g1")),
        ((Claim(("a",), 2, a_spec(1, 1)), Claim(("b",), 1, a_spec(1, 1))), ("g0", "g1")),
        ((Claim(("a",), 3, a_spec(1, 1)),), ("g0", "g1")),
    ],
)
def test_a_request_for_other_devices_does_not_go_with_what_is_held(
    claims: tuple[Claim, ...], devices: tuple[str, ...]
) -> None:
    placement = held(a_pod(Claim(("a",), 2, a_spec(1, 1))), [G0, G1])
    assert placed_again(a_pod(*claims), placement, {uuid: DEVICES[uuid] for uuid in devices}) is None


def test_tflops_of_a_device_of_which_they_are_unknown_go_with_nothing() -> None:
    tflops = ShareSpec(MemoryMiB(1), MemoryMiB(1), ComputeTflops(1000), ComputeTflops(1000))
    placement = held(a_pod(Claim(("a",), 1, a_spec(1, 1))), [G0])
    assert placed_again(a_pod(Claim(("a",), 1, tflops)), placement, DEVICES) is None
    assert placed_again(Pod("default", "p", "u", (Container("a"),)), placement, DEVICES) is None


def test_room_is_what_the_others_leave() -> None:
    mine = held(a_pod(Claim(("a",), 1, a_spec(4000, 300))), [G0])
    other = held(a_pod(Claim(("a",), 1, a_spec(5000, 200)), uid="v"), [G0])
    elsewhere = held(a_pod(Claim(("a",), 1, a_spec(9000, 900)), uid="w"), [G1])
    assert room_of(G0, "u", [mine, other, elsewhere]) == Room(11000, 800)


@pytest.mark.parametrize(
    ("memory", "compute", "expected"),
    [
        (11000, 800, ()),
        (11001, 800, (Short(Reason.MEMORY, "g0", 11001, 11000),)),
        (11000, 801, (Short(Reason.COMPUTE, "g0", 801, 800),)),
        (12000, 900, (Short(Reason.MEMORY, "g0", 12000, 11000), Short(Reason.COMPUTE, "g0", 900, 800))),
    ],
)
def test_a_growth_fits_exactly_as_far_as_there_is_room(
    memory: int, compute: int, expected: tuple[Short, ...]
) -> None:
    before = held(a_pod(Claim(("a",), 1, a_spec(4000, 300))), [G0])
    after = held(a_pod(Claim(("a",), 1, a_spec(memory, compute))), [G0])
    assert shortages(before, after, {"g0": Room(11000, 800)}) == expected
    assert grows(before, after.charges[0])


def test_what_does_not_grow_needs_no_room() -> None:
    """A device can be given out beyond itself, where its inventory shrank: who gives back is not kept from it."""
    before = held(a_pod(Claim(("a",), 1, a_spec(4000, 300))), [G0])
    after = held(a_pod(Claim(("a",), 1, a_spec(3999, 300))), [G0])
    assert shortages(before, after, {"g0": Room(-1000, -100)}) == ()
    assert not grows(before, after.charges[0])


def test_the_most_that_fits_is_what_fits_on_every_device() -> None:
    shorts = (
        Short(Reason.MEMORY, "g0", 9, 5),
        Short(Reason.MEMORY, "g1", 9, 7),
        Short(Reason.COMPUTE, "g1", 900, -3),
    )
    assert (most(shorts, Reason.MEMORY), most(shorts, Reason.COMPUTE)) == (5, 0)
    assert most(shorts[:2], Reason.COMPUTE) is None
