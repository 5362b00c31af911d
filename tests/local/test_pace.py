"""What a compute limit does to a run: launches wait, and neighbours do not cost it its part. Real processes."""

from pathlib import Path

from local.world import World, until
from tessera.wire.shm import Region, parse_region

OK = "0"


def _region(world: World) -> Region:
    """The region of the only limited run."""
    found = [parse_region(path.read_bytes()) for path in world.state.glob("**/regions/*.region")]
    (region,) = (region for region in found if region.devices[0].compute_limit_milli < 1000)
    return region


def test_launches_of_a_limited_run_wait_and_explain_counts_them(world: World, tenant: Path) -> None:
    call = world.run("-q", "--compute", "30%", "--name", "held", "--", str(tenant))
    assert call.say("work 30") == OK
    compute = _region(world).devices[0].compute
    assert compute.throttled > 0
    assert compute.throttled_ns > 0
    assert (
        f"{compute.throttled} launches on device 0 waited for the compute limit"
        in world.call("explain", "held").out
    )
    assert call.end().code == 0


def test_launches_of_a_run_without_a_compute_limit_never_wait(world: World, tenant: Path) -> None:
    call = world.run("-q", "--memory", "1Gi", "--", str(tenant))
    assert call.say("work 30") == OK
    (path,) = world.state.glob("**/regions/*.region")
    assert parse_region(path.read_bytes()).devices[0].compute.throttled == 0


def test_beside_a_busy_neighbour_the_rate_rises_above_the_limit(world: World, tenant: Path) -> None:
    """With two at work events show twice the device time: what is granted must be about twice the limit."""
    neighbour = world.run("-q", "--memory", "1Gi", "--", str(tenant))
    call = world.run("-q", "--memory", "1Gi", "--compute", "40%", "--", str(tenant))
    assert (neighbour.say("work 1"), call.say("work 1")) == (OK, OK)
    assert _region(world).devices[0].compute.rate <= 0.4
    for one in (neighbour, call):
        assert one.process.stdin
        one.process.stdin.write("work 3000\n")
        one.process.stdin.flush()
    until(lambda: _region(world).devices[0].compute.rate > 0.6, "the slices of the neighbour are not charged")


def test_what_short_lived_processes_were_charged_does_not_lift_the_limit(world: World, tenant: Path) -> None:
    script = f"for i in 1 2 3 4 5 6; do echo work 15 | {tenant}; done; read line; exit 0"
    call = world.run("-q", "--compute", "30%", "--", "sh", "-c", script)
    answers = [call.hear() for _ in range(6)]
    assert answers == [OK] * 6
    until(lambda: _region(world).processes == (), "the last process is gone")
    until(lambda: _region(world).devices[0].compute.dilation == 1.0, "nothing is believed of those who are gone")
    assert call.end().code == 0
