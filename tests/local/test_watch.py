"""Which processes are found to be unlimited."""

from tessera.local.watch import NOTHING_SEEN, look_at
from tessera.runtime.nvml import DeviceProcess

OURS = {10: (1, 10), 11: (1, 11), 12: (7, 2)}
"""PID to (namespace, PID in it); 12 lives in a namespace of its own, where it is 2."""


def _using(*pids: int) -> list[DeviceProcess]:
    return [DeviceProcess(pid, "GPU-0", 1 << 20) for pid in pids]


def test_a_registered_process_is_never_suspected() -> None:
    look = look_at(_using(10, 12), {(1, 10), (7, 2)}, OURS.get, NOTHING_SEEN)
    assert look == NOTHING_SEEN


def test_others_on_the_device_are_not_our_business() -> None:
    look = look_at(_using(99), set(), OURS.get, NOTHING_SEEN)
    assert look == NOTHING_SEEN


def test_it_takes_two_looks_in_a_row() -> None:
    first = look_at(_using(10), set(), OURS.get, NOTHING_SEEN)
    assert (first.suspects, first.escaped) == ({10}, ())
    second = look_at(_using(10, 11), set(), OURS.get, first)
    assert [process.pid for process in second.escaped] == [10]
    assert second.suspects == {10, 11}


def test_who_registers_between_two_looks_is_cleared() -> None:
    first = look_at(_using(10), set(), OURS.get, NOTHING_SEEN)
    assert look_at(_using(10), {(1, 10)}, OURS.get, first) == NOTHING_SEEN


def test_the_same_number_in_another_namespace_is_somebody_else() -> None:
    first = look_at(_using(12), {(1, 2)}, OURS.get, NOTHING_SEEN)
    assert first.suspects == {12}


def test_a_process_on_two_devices_is_one_escape() -> None:
    using = [DeviceProcess(10, "GPU-0", 1), DeviceProcess(10, "GPU-1", 1)]
    first = look_at(using, set(), OURS.get, NOTHING_SEEN)
    assert len(look_at(using, set(), OURS.get, first).escaped) == 1
