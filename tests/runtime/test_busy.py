"""Busy time out of samples, with times written out: milliseconds on a wall clock that is 10,000 s ahead."""

from tessera.runtime.busy import BusyTime, Moment, add_samples, begin_busy
from tessera.runtime.nvml import ProcessSample

MS = 1_000_000
WALL_US = 10_000_000_000
OURS = {10, 11}


def _at(ms: int, *, set_forward_ms: int = 0) -> Moment:
    return Moment(wall_us=WALL_US + (ms + set_forward_ms) * 1000, monotonic_ns=ms * MS)


def _sample(ms: int, percent: int, pid: int = 10) -> ProcessSample:
    return ProcessSample(pid, WALL_US + ms * 1000, percent)


def _looks(*looks: tuple[int, list[ProcessSample]]) -> BusyTime:
    busy = begin_busy(_at(0))
    for ms, samples in looks:
        busy = add_samples(busy, samples, OURS, _at(ms))
    return busy


def test_the_time_between_two_samples_counts_at_the_later_ones_rate() -> None:
    busy = _looks((100, [_sample(95, 40)]), (200, [_sample(195, 60)]))
    # 95 ms at 40 % since the beginning, then 100 ms at 60 %.
    assert busy.reading == (38 * MS + 60 * MS, 195 * MS)


def test_a_sample_that_is_told_twice_counts_once() -> None:
    once = _looks((100, [_sample(95, 40)]))
    again = _looks((100, [_sample(95, 40)]), (200, [_sample(95, 40)]))
    assert again.reading == once.reading == (38 * MS, 95 * MS)


def test_processes_of_the_share_add_up_and_neighbours_only_move_the_time_on() -> None:
    busy = _looks((100, [_sample(90, 30), _sample(90, 20, pid=11), _sample(95, 50, pid=99)]))
    assert busy.reading == (27 * MS + 18 * MS, 95 * MS)
    assert _looks((100, [_sample(90, 30)]), (200, [_sample(190, 100, pid=99)])).reading == (27 * MS, 190 * MS)


def test_two_rows_of_one_process_and_moment_are_its_sum_and_never_more_than_all_of_the_time() -> None:
    assert _looks((100, [_sample(100, 30), _sample(100, 20)])).reading == (50 * MS, 100 * MS)
    assert _looks((100, [_sample(100, 70), _sample(100, 60)])).reading == (100 * MS, 100 * MS)


def test_nothing_is_claimed_before_a_process_of_the_share_was_seen() -> None:
    """The driver may name processes by numbers of another PID namespace."""
    busy = _looks((100, [_sample(95, 90, pid=99)]), (200, [_sample(195, 90, pid=99)]))
    assert busy.reading == (0, 0)


def test_a_pause_is_not_busy_time() -> None:
    busy = _looks(
        (100, [_sample(100, 50)]),
        (200, [_sample(200, 50)]),
        *((ms, []) for ms in range(300, 5001, 100)),
        (5100, [_sample(5080, 50)]),
    )
    # The period is 100 ms by the first two; of the 4,880 ms until the third one period counts.
    assert busy.reading == (50 * MS + 50 * MS + 50 * MS, 5080 * MS)


def test_a_driver_that_samples_more_slowly_than_we_look_loses_nothing() -> None:
    quiet: list[ProcessSample] = []
    busy = _looks(*((ms, [_sample(ms, 80)] if ms % 1000 == 0 else quiet) for ms in range(200, 4001, 200)))
    assert busy.reading == (3200 * MS, 4000 * MS)


def test_periods_that_were_missed_between_two_looks_count_like_the_last() -> None:
    looks = [(ms, [_sample(ms, 50)]) for ms in (100, 200, 300)]
    assert _looks(*looks, (800, [_sample(800, 50)])).reading == (400 * MS, 800 * MS)


def test_what_was_before_the_beginning_or_is_stamped_after_now_changes_nothing() -> None:
    assert _looks((100, [_sample(-50, 90), _sample(0, 90), _sample(140, 90)])).reading == (0, 0)


def test_a_clock_that_is_set_costs_one_look_and_nothing_else() -> None:
    for hour in (3_600_000, -3_600_000):
        busy = _looks((100, [_sample(100, 50)]))
        busy = add_samples(busy, [_sample(200 + hour, 50)], OURS, _at(200, set_forward_ms=hour))
        assert busy.reading == (50 * MS, 100 * MS)
        busy = add_samples(busy, [_sample(300 + hour, 50)], OURS, _at(300, set_forward_ms=hour))
        assert busy.reading == (50 * MS + 50 * MS, 300 * MS)
