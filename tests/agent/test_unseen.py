"""What the driver sees a share use beyond its books narrows its limit, once it is certain; nothing else does."""

import pytest

from agent.test_ticks import CARD, Desk
from tessera.agent.machine import renumbered
from tessera.agent.store import read_region
from tessera.agent.unseen import LOOKS, UnseenMemory, beyond
from tessera.runtime.nvml import DeviceProcess

MIB = 1 << 20


@pytest.fixture
def desk(tmp_path):
    found = Desk(tmp_path)
    yield found
    found.running.close()


def unseen(share):
    return read_region(share.region).devices[0].unseen_bytes


class Rounds:
    """Looks at a node whose driver says what a test has it say."""

    def __init__(self, desk):
        self.desk, self.said = desk, ()
        self.memory = UnseenMemory(desk.running, lambda: self.said)

    def look(self, times=1, **used):
        self.said = [DeviceProcess(int(pid[1:]), CARD, amount) for pid, amount in used.items()]
        for _ in range(times):
            self.desk.running.learn(self.said)
            self.memory.look()


def test_only_what_neither_book_shows_is_beyond():
    assert beyond([5, 7], before=2, after=4) == 8
    assert beyond([5, 7], before=4, after=2) == 8
    assert beyond([5], before=9, after=2) == 0
    assert beyond([], before=0, after=0) == 0
    assert beyond([5, None], before=0, after=0) is None


def test_memory_of_all_processes_that_the_region_lacks_is_told_after_five_looks(desk):
    one, other = desk.share("one", 0), desk.share("other", 500)
    desk.places = {1: "one", 2: "one", 3: "other"}
    rounds = Rounds(desk)
    rounds.look(LOOKS - 1, p1=3 * MIB, p2=4 * MIB, p3=0, p4=9 * MIB)
    assert unseen(one) == 0
    rounds.look(p1=3 * MIB, p2=4 * MIB, p3=0, p4=9 * MIB)
    assert (unseen(one), unseen(other)) == (7 * MIB, 0)


def test_a_single_look_that_saw_less_is_believed_at_once_and_one_that_saw_more_is_not(desk):
    share = desk.share("one", 0)
    desk.places = {1: "one"}
    rounds = Rounds(desk)
    rounds.look(LOOKS, p1=6 * MIB)
    rounds.look(p1=100 * MIB)
    assert unseen(share) == 6 * MIB
    rounds.look(p1=2 * MIB)
    assert unseen(share) == 2 * MIB


def test_where_the_driver_does_not_tell_a_processs_memory_nothing_is_changed(desk):
    share = desk.share("one", 0)
    desk.places = {1: "one", 2: "one"}
    rounds = Rounds(desk)
    rounds.look(LOOKS, p1=6 * MIB)
    rounds.look(2 * LOOKS, p1=9 * MIB, p2=None)
    assert unseen(share) == 6 * MIB


def test_once_no_process_is_left_nothing_is_unseen(desk):
    share = desk.share("one", 0)
    desk.places = {1: "one"}
    rounds = Rounds(desk)
    rounds.look(LOOKS, p1=6 * MIB)
    rounds.look()
    assert unseen(share) == 0


def test_a_region_that_its_container_cut_off_is_left_alone(desk):
    share = desk.share("one", 0)
    desk.places = {1: "one"}
    rounds = Rounds(desk)
    rounds.look(p1=6 * MIB)
    with share.region.open("r+b") as file:
        file.truncate(0)
    rounds.look(LOOKS, p1=6 * MIB)
    rounds.look()
    assert share.region.stat().st_size == 0


def test_two_processes_that_a_simulated_machine_knows_by_one_number_have_no_memory_of_their_own():
    listed = [DeviceProcess(1, CARD, 5), DeviceProcess(7, CARD, 9)]
    assert list(renumbered(listed, {101: 1, 102: 1, 103: 7})) == [
        DeviceProcess(101, CARD, None),
        DeviceProcess(102, CARD, None),
        DeviceProcess(103, CARD, 9),
    ]
