"""What is learned of the pods that came: bounded, fading, and the same for the same pods."""

from tessera.policy.target import MOST_KINDS, PRIOR, Kind, popular, target_of
from tessera.policy.workload import HALF_LIFE, ONE_POD, PRIOR_PODS, Workload


def test_what_is_usual_counts_as_twenty_pods_at_first():
    counts = Workload().counts()
    assert counts.keys() == PRIOR.keys()
    assert PRIOR_PODS * ONE_POD - len(PRIOR) < sum(counts.values()) <= PRIOR_PODS * ONE_POD


def test_pods_that_are_nearly_alike_count_together():
    workload = Workload({})
    workload.saw(Kind(3152, 333, 1))
    workload.saw(Kind(3101, 340, 1))
    assert workload.counts() == {Kind(3200, 340, 1): 2 * ONE_POD}


def test_what_is_long_past_counts_half_and_is_forgotten_in_the_end():
    workload = Workload({})
    workload.saw(Kind(0, 500, 1))
    for _ in range(HALF_LIFE - 1):
        workload.saw(Kind(0, 1000, 1))
    assert workload.counts() == {Kind(0, 500, 1): ONE_POD // 2, Kind(0, 1000, 1): (HALF_LIFE - 1) * ONE_POD // 2}
    for _ in range(10):
        workload.fade()
    assert Kind(0, 500, 1) not in workload.counts()


def test_memory_is_bounded_and_the_rarest_kind_makes_room():
    workload = Workload({})
    workload.saw(Kind(0, 1000, 1))
    workload.saw(Kind(0, 1000, 1))
    for cpu in range(MOST_KINDS + 50):
        workload.saw(Kind(cpu * 100, 500, 1))
    counts = workload.counts()
    assert len(counts) == MOST_KINDS
    assert counts[Kind(0, 1000, 1)] == 2 * ONE_POD


def test_an_outlook_is_due_after_fifty_pods_and_then_after_one_in_twenty():
    workload = Workload()
    for new in (50, 50, 50):
        for _ in range(new - 1):
            workload.saw(Kind(0, 500, 1))
        assert not workload.due
        workload.saw(Kind(0, 500, 1))
        assert workload.due
        workload.counts()
    for _ in range(2000):
        workload.saw(Kind(0, 500, 1))
    workload.counts()
    for _ in range(107):
        workload.saw(Kind(0, 500, 1))
    assert not workload.due  # 5 % of 2,257 is 112
    for _ in range(6):
        workload.saw(Kind(0, 500, 1))
    assert workload.due


def test_the_most_frequent_kinds_are_taken_until_they_cover_95_percent():
    kinds = {Kind(0, 100, 1): 60, Kind(0, 200, 1): 30, Kind(0, 300, 1): 5, Kind(0, 400, 1): 5}
    assert [kind.milli for kind, _ in popular(kinds)] == [100, 200, 400]


def test_weights_of_a_group_add_up_with_the_cpu_that_is_left_and_the_models_that_are_allowed():
    """Half of the pods want 500 milli and 4 cores, a quarter the same with 8 cores on a T4, a quarter CPU
    alone."""
    kinds = [(Kind(4000, 500, 1), 2), (Kind(8000, 500, 1, ("T4",)), 1), (Kind(1000, 0, 0), 1)]
    target = target_of(kinds, ("A100", "T4"))
    one = 1 << 32
    assert (target.cpus.tolist(), target.values.tolist(), target.total) == ([4000, 8000], [500], one)
    assert target.weight[:, :, 0].tolist() == [[0, one // 2, one // 2], [0, one // 2, one // 2 + one // 4]]
