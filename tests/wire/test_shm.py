"""The region codec against the compiled header, and against files that are no region."""

import struct
from pathlib import Path

import pytest

from tessera.runtime.native import DeviceLimits, LiveRegion, create_region, region_layout
from tessera.wire.shm import (
    FIELDS,
    SIZES,
    UNLIMITED,
    RegionError,
    RegionFault,
    header_checksum,
    parse_region,
)

GIB = 1 << 30
ONE = DeviceLimits("GPU-11111111-2222-3333-4444-555555555555", 8 * GIB, 4 * GIB, 300, 250)
TWO = DeviceLimits("GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee", UNLIMITED, 0, 1000, 0)


@pytest.fixture
def region(tmp_path: Path, native: Path) -> Path:
    path = tmp_path / "a.region"
    create_region(path, "a-share", [ONE, TWO])
    return path


def test_every_field_lies_where_the_compiled_header_has_it(native: Path) -> None:
    compiled = dict(line.split(maxsplit=1) for line in region_layout().splitlines())
    ours = {name: f"{offset} {size}" for name, (offset, size) in FIELDS.items()}
    ours |= {name: str(size) for name, size in SIZES.items()}
    assert compiled == ours


def test_a_new_region_reads_back_as_it_was_asked_for(region: Path) -> None:
    found = parse_region(region.read_bytes())
    assert found.share_id == "a-share"
    assert [(d.uuid, d.memory_limit, d.memory_request) for d in found.devices] == [
        (ONE.uuid, 8 * GIB, 4 * GIB),
        (TWO.uuid, None, 0),
    ]
    assert [(d.compute_limit_milli, d.compute_request_milli) for d in found.devices] == [(300, 250), (1000, 0)]
    assert [(d.used_bytes, d.peak_bytes, d.refused) for d in found.devices] == [(0, 0, 0)] * 2
    assert (found.processes, found.reaped, found.full, found.is_torn) == ((), 0, 0, False)


def test_a_limit_changed_by_the_helper_is_the_limit_read(region: Path) -> None:
    with LiveRegion(region, 2) as live:
        live.limit_memory([GIB, 0])
    found = parse_region(region.read_bytes())
    assert [device.memory_limit for device in found.devices] == [GIB, 0]
    assert found.generation == 4, "two changes, each from even to even"


def test_what_processes_wrote_is_read_in_bytes(region: Path) -> None:
    data = bytearray(region.read_bytes())
    struct.pack_into("<Q", data, 8192, (6 << 31) | 12345)  # gauge of device 0: 6 granules of 512 bytes
    struct.pack_into("<QQ", data, 8192 + 256 + 64, 7, 9)  # device 1: 7 refusals, a peak of 9 granules
    struct.pack_into("<Q", data, 8192 + 4096, 2)  # two slots were ever used
    struct.pack_into("<QIIQ", data, 16384, 2, 4711, 0, 99)  # slot 0: live, pid 4711, started at tick 99
    struct.pack_into("<Q", data, 16384 + 40, 77)  # its PID namespace
    struct.pack_into("<16s", data, 16384 + 64, b"train")
    struct.pack_into("<Q", data, 16384 + 128 + 64, 4)  # 4 granules on device 1
    struct.pack_into("<Q", data, 16384 + 128 + 64 + 56, 3)  # of which 3 that no call shows
    struct.pack_into("<Q", data, 16384 + 1152, 1)  # slot 1: only claimed
    struct.pack_into("<Q", data, 4096 + 128 + 64, 5000)  # the host found 5,000 bytes more on device 0
    struct.pack_into("<Q64s", data, 8192 + 4120, 2, b"cuMemAllocTomorrow")
    found = parse_region(bytes(data))
    assert (found.devices[0].used_bytes, found.devices[1].refused, found.devices[1].peak_bytes) == (3072, 7, 4608)
    (process,) = found.processes
    assert (process.pid, process.start_ticks, process.pid_namespace, process.command) == (4711, 99, 77, "train")
    assert (process.used_bytes, process.hidden_bytes) == ((0, 2048), (0, 1536))
    assert [device.unseen_bytes for device in found.devices] == [5000, 0]
    assert (found.unknown_symbols, found.unknown_symbol) == (2, "cuMemAllocTomorrow")


def _damaged(data: bytes, offset: int, layout: str, value: int, *, signed: bool = True) -> bytes:
    changed = bytearray(data)
    struct.pack_into(layout, changed, offset, value)
    if signed:
        struct.pack_into("<I", changed, 24, header_checksum(bytes(changed)))
    return bytes(changed)


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda data: b"", RegionFault.TRUNCATED),
        (lambda data: data[:4095], RegionFault.TRUNCATED),
        (lambda data: data[:-1], RegionFault.TRUNCATED),
        (lambda data: data + b"\0", RegionFault.TRUNCATED),
        (lambda data: b"SQLite format 3\0" + data[16:], RegionFault.FOREIGN),
        (lambda data: _damaged(data, 8, "<I", 2), RegionFault.VERSION),
        (lambda data: _damaged(data, 28, "<I", 3, signed=False), RegionFault.CHECKSUM),
        (lambda data: _damaged(data, 4000, "<I", 1, signed=False), RegionFault.CHECKSUM),
        (lambda data: _damaged(data, 28, "<I", 0), RegionFault.LAYOUT),
        (lambda data: _damaged(data, 28, "<I", 17), RegionFault.LAYOUT),
        (lambda data: _damaged(data, 32, "<I", 2048), RegionFault.LAYOUT),
        (lambda data: _damaged(data, 56, "<Q", 1 << 40), RegionFault.LAYOUT),
    ],
)
def test_what_is_not_a_sound_region_is_named(region: Path, spoil: object, fault: RegionFault) -> None:
    assert callable(spoil)
    with pytest.raises(RegionError) as caught:
        parse_region(spoil(region.read_bytes()))
    assert caught.value.fault is fault


def test_a_newer_minor_version_is_read(region: Path) -> None:
    assert parse_region(_damaged(region.read_bytes(), 12, "<I", 7)).share_id == "a-share"
