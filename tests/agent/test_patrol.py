"""Who uses a device without a limit is seen, named, and only then ended; nobody else is."""

from dataclasses import dataclass, field, replace

import pytest

from tessera.agent.cgroups import Placement
from tessera.agent.patrol import Breach, Held, Look, Roster, escape_message, look_at
from tessera.runtime.nvml import DeviceProcess

HELD = Held("uid-p", "team/p", "main", "c1", frozenset({(7, 1)}))
ROSTER = Roster({"c1": HELD}, {"uid-p": "team/p"})


@dataclass
class World:
    """Processes as they could be: pid to (pod uid, container id), (namespace, inner pid) and start."""

    places: dict[int, tuple[str, str]] = field(default_factory=dict)
    inners: dict[int, tuple[int, int]] = field(default_factory=dict)
    starts: dict[int, int] = field(default_factory=dict)

    def placement(self, pid):
        return Placement(*self.places[pid]) if pid in self.places else None

    def inner(self, pid):
        return self.inners.get(pid, (1, pid))

    def start(self, pid):
        return self.starts.get(pid, 5)


def using(*pids):
    return [DeviceProcess(pid, "GPU-a", 5 << 20) for pid in pids]


def twice(world, processes, roster=ROSTER):
    return look_at(processes, roster, world, look_at(processes, roster, world, Look()))


def test_a_registered_process_of_a_gated_container_is_no_escape():
    assert twice(World({9: ("uid-p", "c1")}, {9: (7, 1)}), using(9)) == Look()


CASES = {
    "no limiter in it": (World({9: ("uid-p", "c1")}, {9: (7, 2)}), Breach.UNREGISTERED, "team/p", "main"),
    "another namespace's pid": (World({9: ("uid-p", "c1")}, {9: (8, 1)}), Breach.UNREGISTERED, "team/p", "main"),
    "a container past the gate": (World({9: ("uid-p", "c2")}, {9: (7, 1)}), Breach.UNGATED, "team/p", ""),
    "a gated container's id in another pod": (World({9: ("uid-q", "c1")}, {9: (7, 1)}), Breach.STRANGER, "", ""),
    "a pod without a share": (World({9: ("uid-z", "c9")}), Breach.STRANGER, "", ""),
    "a process of the host": (World(), Breach.STRANGER, "", ""),
}


@pytest.mark.parametrize("name", CASES)
def test_every_other_process_is_an_escape_at_the_second_look(name):
    """Row 26: nobody runs unlimited without being told."""
    world, breach, key, container = CASES[name]
    first = look_at(using(9), ROSTER, world, Look())
    assert first.escapes == ()
    (escape,) = look_at(using(9), ROSTER, world, first).escapes
    assert (escape.breach, escape.pid, escape.key, escape.container) == (breach, 9, key, container)
    assert escape.can_be_stopped == (breach is not Breach.STRANGER)


def test_a_pid_that_was_given_anew_is_another_process():
    first = look_at(using(9), ROSTER, World(starts={9: 5}), Look())
    assert look_at(using(9), ROSTER, World(starts={9: 6}), first).escapes == ()


def test_a_process_that_is_gone_is_nobody():
    world = World(starts={9: None})
    assert twice(world, using(9)) == Look()


def test_a_message_says_what_the_driver_holds_all_the_same():
    roster = Roster({"c1": replace(HELD, is_fenced=True)}, ROSTER.pods)
    world = World({9: ("uid-p", "c1")})
    first = look_at(using(9), roster, world, Look())
    (escape,) = look_at(using(9), roster, world, first).escapes
    said = escape_message(escape, "python", stopped=False)
    assert "the driver holds its memory but for managed memory, nothing holds its compute" in said


def test_a_message_names_process_device_amount_and_what_to_do():
    (escape,) = twice(World({9: ("uid-p", "c1")}), using(9)).escapes
    said = escape_message(escape, "python train.py", stopped=False)
    assert said.startswith(
        "isolation absent: process 9 (python train.py) of container main uses GPU-a (5 MiB) without"
    )
    assert "use a dynamically linked glibc image" in said
    assert "was stopped: it used GPU-a" in escape_message(escape, "python", stopped=True)
