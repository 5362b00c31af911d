"""Compute limits of a region: what the helpers write is what the codec reads."""

import struct
from pathlib import Path

import pytest

from tessera.runtime.native import (
    Borrower,
    Calibration,
    DeviceLimits,
    LiveRegion,
    RegionCallError,
    create_region,
    lend_compute,
)
from tessera.wire.shm import ComputeMode, RegionCompute, parse_region

GIB = 1 << 30
LIMITED = DeviceLimits("GPU-11111111-2222-3333-4444-555555555555", 8 * GIB, 4 * GIB, 250, 250)
WHOLE = DeviceLimits("GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee", 8 * GIB, 0, 1000, 0)
SECOND = 1_000_000_000


@pytest.fixture
def region(tmp_path: Path, native: Path) -> Path:
    path = tmp_path / "a.region"
    create_region(path, "a-share", [LIMITED, WHOLE])
    return path


def _compute(region: Path) -> list[RegionCompute]:
    return [device.compute for device in parse_region(region.read_bytes()).devices]


def test_a_new_region_holds_what_has_a_limit(region: Path) -> None:
    limited, whole = _compute(region)
    assert (limited.mode, limited.rate, limited.dilation) == (ComputeMode.HARD, 0.25, 1.0)
    assert (whole.mode, whole.throttled_ns, whole.throttled) == (ComputeMode.OFF, 0, 0)


def test_a_limit_and_a_pause_are_read_as_they_were_set(region: Path) -> None:
    with LiveRegion(region, 2) as live:
        live.limit_compute(1, 750, ComputeMode.BURST)
        live.pause(paused=True)
        found = parse_region(region.read_bytes())
        assert (found.devices[1].compute_limit_milli, found.devices[1].compute.mode) == (750, ComputeMode.BURST)
        assert (found.devices[1].compute.rate, found.paused) == (0.75, True)
        live.pause(paused=False)
    assert not parse_region(region.read_bytes()).paused


def test_what_is_out_of_range_is_refused(region: Path) -> None:
    with LiveRegion(region, 2) as live:
        with pytest.raises(RegionCallError):
            live.limit_compute(2, 500, ComputeMode.HARD)
        with pytest.raises(RegionCallError):
            live.limit_compute(0, 500, 9)


def test_a_loan_is_the_rate_that_is_read(region: Path) -> None:
    with LiveRegion(region, 2) as live:
        live.tick(0, Calibration(), (0, 5 * SECOND), 500, 5 * SECOND)
    assert _compute(region)[0].rate == 0.5


def test_dilation_is_charged_time_by_busy_time(region: Path) -> None:
    calibration = Calibration()
    with LiveRegion(region, 2) as live:
        for tick in range(1, 41):
            data = bytearray(region.read_bytes())
            struct.pack_into("<Q", data, 8192 + 160, tick * SECOND // 10)  # finished_ns: charged for all the time
            region.write_bytes(data)
            live.tick(0, calibration, (tick * SECOND // 20, tick * SECOND // 10), 250, tick * SECOND // 10)
    found = _compute(region)[0]
    assert (found.finished_ns, found.rate) == (4 * SECOND, pytest.approx(0.5, rel=0.02))
    assert found.dilation == pytest.approx(2.0, rel=0.02), "busy half of the time that was charged"


def test_counters_are_read_where_they_lie(region: Path) -> None:
    data = bytearray(region.read_bytes())
    struct.pack_into("<QQQ", data, 8192 + 176, 7_000, 3, 9_000)
    found = parse_region(bytes(data)).devices[0].compute
    assert (found.throttled_ns, found.throttled, found.waited_ns) == (7_000, 3, 9_000)


def test_what_one_share_leaves_is_lent_to_another(native: Path) -> None:
    waiting = Borrower(300, ComputeMode.BURST, 300, 1, waits=True)
    idle = Borrower(700, ComputeMode.HARD, 0, 1, waits=False)
    assert lend_compute([waiting, idle]) == (1000, 700)
    assert lend_compute([]) == ()
