"""Runs beside each other: who goes first, memory beyond a request, and memory in the host. Real processes."""

from pathlib import Path

import pytest

from local.world import Call, World, until
from tessera.core.errors import InputErrors
from tessera.core.priority import Priority
from tessera.core.share import MemoryMiB
from tessera.local.ask import Ask, check_ask, share_spec
from tessera.wire.shm import RegionDevice, parse_region

OUT_OF_MEMORY = "2"
GIB = 1024 * 1024 * 1024


def region_of(world: World, name: str) -> RegionDevice:
    run = until(lambda: world.named(name), f"{name} is there")
    (path,) = world.state.glob(f"**/regions/{run['id']}.region")
    return parse_region(path.read_bytes()).devices[0]


def started(world: World, tenant: Path, name: str, *options: str) -> Call:
    call = world.run("-q", "--name", name, *options, "--", str(tenant))
    assert int(call.say("pid")) > 0
    return call


def test_growth_beyond_a_request_stops_where_the_requests_of_others_begin(world: World, tenant: Path) -> None:
    greedy = started(world, tenant, "greedy", "--memory", "20Gi", "--memory-limit", "60Gi")
    started(world, tenant, "owner", "--memory", "40Gi")
    until(lambda: region_of(world, "greedy").memory.ceiling == 40 * GIB, "it may have 80 - 40")
    assert greedy.say(f"alloc {40 * 1024 + 1}") == OUT_OF_MEMORY
    assert greedy.say(f"alloc {40 * 1024}") == "0"
    assert region_of(world, "greedy").memory.full == 1


def test_who_is_beyond_its_request_ends_for_who_is_within(world: World, tenant: Path) -> None:
    greedy = started(world, tenant, "greedy", "--memory", "20Gi", "--memory-limit", "80Gi")
    assert greedy.say(f"alloc {70 * 1024}") == "0"
    owner = started(world, tenant, "owner", "--memory", "40Gi")
    assert owner.say(f"alloc {40 * 1024}") == "0"
    done = greedy.end()
    assert done.code == 128 + 9
    assert "another run lacks memory that it requested" in done.err


def test_what_may_spill_goes_on_in_host_memory(world: World, tenant: Path) -> None:
    options = ("--memory", "20Gi", "--memory-limit", "60Gi", "--spill", "30Gi")
    greedy = started(world, tenant, "greedy", *options)
    owner = started(world, tenant, "owner", "--memory", "40Gi")
    until(lambda: region_of(world, "greedy").memory.ceiling == 40 * GIB, "it may have 80 - 40")
    assert greedy.say(f"alloc {40 * 1024}") == "0"
    assert greedy.say(f"alloc {10 * 1024}") == "0"
    run = world.named("greedy")
    assert run is not None
    assert run["devices"][0]["memory_spilled_mib"] == 10 * 1024
    assert owner.say(f"alloc {40 * 1024}") == "0", "nobody else notices"
    assert greedy.say("free") == "0"
    assert region_of(world, "greedy").memory.spilled_bytes == 0


def test_a_low_run_yields_while_a_high_one_works(world: World, tenant: Path) -> None:
    low = started(world, tenant, "low", "--memory", "8Gi", "--priority", "low")
    high = started(world, tenant, "high", "--memory", "8Gi", "--priority", "high")
    assert low.say("work 1") == "0"

    def is_capped() -> bool:
        assert high.say("work 1") == "0"
        return region_of(world, "low").order.cap_milli == 50

    until(is_capped, "the low run is capped at its floor")
    assert low.say("work 1") == "0", "it yields, and is not stopped"
    until(lambda: region_of(world, "low").order.cap_milli == 1000, "it has everything again")
    assert region_of(world, "high").order.cap_milli == 0
    assert high.end().code == 0
    until(lambda: region_of(world, "low").order.cap_milli == 0, "nobody goes before it")


def test_the_options_are_a_share() -> None:
    spec = share_spec(Ask(memory="8Gi", memory_limit="12Gi", spill="4Gi", priority="HIGH"))
    assert (spec.memory_request, spec.memory_limit) == (MemoryMiB(8192), MemoryMiB(12288))
    assert (spec.spill, spec.priority) == (4096, Priority.HIGH)
    assert share_spec(Ask(memory="8Gi")).priority is Priority.MEDIUM


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (Ask(memory="8Gi", memory_limit="4Gi"), "less than --memory 8Gi"),
        (Ask(memory="8Gi", memory_limit="50%"), "cannot be compared"),
        (Ask(memory_limit="4Gi"), "beyond what request"),
        (Ask(memory="8Gi", memory_limit="much"), "not an amount of memory"),
        (Ask(memory="8Gi", spill="25%"), "host memory is none"),
        (Ask(memory="8Gi", priority="urgent"), "is no priority"),
    ],
)
def test_options_that_mean_nothing_are_refused(ask: Ask, words: str) -> None:
    with pytest.raises(InputErrors, match=words):
        check_ask(ask)
