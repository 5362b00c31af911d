"""A short chaos run: a whole cluster under load, its programs killed at seeded moments, and nothing lost by it.

``make chaos SEED=... KILLS=200`` runs long ones, with a real node.
"""

from cluster.chaos.run import Settings, run

SEED = 20_260


def test_programs_are_killed_under_load_and_no_device_is_ever_over_booked(engine, tmp_path):
    report = run(Settings(SEED, kills=10, nodes=6, pods=40, pace=1.5), tmp_path, print)
    assert not report.violations, report.text()
    bound = int(str(report.figures["pods created, bound, finished"]).split(", ")[1])
    assert bound >= 20, report.text()
