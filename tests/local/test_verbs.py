"""``devices``, ``ps``, ``explain`` and ``top``: what they say about real runs on a simulated machine."""

import os
from collections.abc import Iterator

import pytest

from local.world import Call, World, until

MACHINE = "4xA100-SXM4-80GB"
NAME = "4xNVIDIA-A100-SXM4-80GB"


@pytest.fixture
def busy(world: World, tenant: object) -> Iterator[World]:
    """A share of 8192 MiB, 3000 of them used and one allocation refused, and a run on two whole devices."""
    world.machine = MACHINE
    train = world.run("-q", "--memory", "8Gi", "--compute", "30%", "--name", "train", "--", str(tenant))
    assert [train.say("alloc 3000"), train.say("alloc 9000")] == ["0", "2"]
    whole = world.run("-q", "--devices", "2", "--name", "whole", "--", "cat")
    until(lambda: (world.named("whole") or {}).get("state") == "running", "the second one runs")
    yield world
    assert (train.end().code, whole.end().code) == (0, 0)


def test_devices_add_up(busy: World) -> None:
    document = busy.call("devices", "--simulate", MACHINE, "-o", "json").json
    assert (document["machine"], document["simulated"]) == (NAME, True)
    rows = [
        (
            d["index"],
            d["memory_mib"],
            d["memory_allocated_mib"],
            d["memory_free_mib"],
            d["memory_used_mib"],
            d["compute_allocated_milli"],
            d["shares"],
            d["exclusive"],
        )
        for d in document["devices"]
    ]
    assert rows == [
        (0, 81920, 8192, 73728, 3000, 300, 1, False),
        (1, 81920, 81920, 0, 0, 1000, 1, True),
        (2, 81920, 81920, 0, 0, 1000, 1, True),
        (3, 81920, 0, 81920, 0, 0, 0, False),
    ]
    assert {d["isolation"] for d in document["devices"]} == {"hook"}
    assert [d["numa"] for d in document["devices"]] == [0, 0, 1, 1]


def test_a_simulated_machine_always_says_so(busy: World) -> None:
    for words in (
        ("devices", "--simulate", MACHINE),
        ("ps",),
        ("explain", "train"),
        ("top", "--simulate", MACHINE, "--once"),
    ):
        assert f"{NAME} (simulated)" in busy.call(*words).out
    assert {run["simulated"] for run in busy.runs()} == {True}


def test_the_name_of_a_simulated_machine_names_it_again(world: World) -> None:
    for spec, memory in (("2xT4:24Gi", 24576), ("2xTesla T4:1000Mi", 1000)):
        name = world.call("devices", "--simulate", spec, "-o", "json").json["machine"]
        again = world.call("devices", "--simulate", name, "-o", "json").json
        assert again["machine"] == name
        assert [device["memory_mib"] for device in again["devices"]] == [memory] * 2


def test_ps_shows_runs_of_all_machines_and_says_which(busy: World) -> None:
    other = busy.start("run", "-q", "--simulate", "1xT4", "--memory", "1Gi", "--name", "train", "--", "cat")
    until(lambda: len(busy.runs()) == 3, "the third one is there")
    shown = sorted((run["machine"], run["name"]) for run in busy.runs())
    assert shown == [("1xTesla-T4", "train"), (NAME, "train"), (NAME, "whole")]
    lines = busy.call("ps").out.splitlines()
    assert lines[0].split()[4:8] == ["DEVICES", "USED", "LIMIT", "COMPUTE"]
    train = next(line for line in lines if NAME in line and line.startswith("train"))
    assert train.split()[4:8] == ["0", "2.9Gi", "8Gi", "30%"]
    twice = busy.call("explain", "train")
    assert twice.code == 2
    ids = [run["id"] for run in busy.runs() if run["name"] == "train"]
    assert all(identity in twice.err for identity in ids)
    assert busy.call("explain", ids[0], "-o", "json").json["run"]["id"] == ids[0]
    other.end()


def test_explain_says_what_was_asked_given_used_and_refused(busy: World) -> None:
    account = busy.call("explain", "train", "-o", "json").json
    (share,) = account["run"]["devices"]
    assert (share["memory_limit_mib"], share["memory_used_mib"], share["memory_peak_mib"]) == (8192, 3000, 3000)
    assert (share["compute_limit_milli"], share["refused"]) == (300, 1)
    assert [process["memory_used_mib"] for process in account["run"]["processes"]] == [3000]
    assert account["asked"] == "1 device with 30% of its compute and 8,192 MiB"
    text = busy.call("explain", "train").out
    for part in ("4 of 4 devices could host it", "3,000 MiB now", "1 allocation that", "held by libtessera.so"):
        assert part in text


def test_a_count_alone_is_explained_as_whole_devices(busy: World) -> None:
    """Leaving out the memory means the whole card only because it is said (HAMi#888)."""
    text = busy.call("explain", "whole").out
    assert "2 whole devices, nobody else on them (because neither --memory nor --compute was said)" in text
    assert text.count("81,920 MiB, 100% of the compute, nobody else on it") == 2


def test_a_refusal_names_reasons_holders_and_the_smallest_change(busy: World) -> None:
    ended = busy.run("--devices", "2", "--memory", "73Gi", "--", "true").end()
    assert ended.code == 1
    lines = ended.err.splitlines()
    assert "tessera:   why: 2 devices held exclusively by another run" in lines
    assert "tessera:   would run now: --memory 73728Mi; or --devices 1" in lines, "80 GiB less the 8 of train"
    assert any(line.startswith("tessera:   held: whole (") for line in lines)
    assert busy.run("-q", "--devices", "2", "--memory", "73728Mi", "--", "true").end().code == 0


def test_unknown_runs_are_named_with_those_that_are(busy: World) -> None:
    ended = busy.call("explain", "trian")
    assert ended.code == 2
    assert "train, whole" in ended.err


def test_top_prints_one_look(busy: World) -> None:
    document = busy.call("top", "--simulate", MACHINE, "-o", "json").json
    assert [device["shares"] for device in document["devices"]] == [1, 1, 1, 0]
    assert {run["name"]: len(run["devices"]) for run in document["runs"]} == {"train": 1, "whole": 2}
    text = busy.call("top", "--simulate", MACHINE, "--once").out
    assert text.index("NVIDIA A100") < text.index("train")


def test_nothing_yet_is_said_kindly(world: World) -> None:
    assert world.runs() == []
    assert "tessera run" in world.call("ps").out
    assert "No runs." in world.call("top", "--simulate", "1xT4", "--once").out
    assert "there are no runs" in world.call("explain", "any").err
    assert not list(world.state.rglob("ledger.db")), "looking makes no ledger"


def test_without_a_driver_devices_says_what_to_do(world: World) -> None:
    ended = world.call("devices")
    if not ended.out:  # a machine with a driver lists its devices
        assert ended.code == 1
        assert "no NVIDIA driver found" in ended.err
        assert "--simulate" in ended.err


def test_a_reader_that_goes_away_is_no_error(busy: World) -> None:
    call = busy.start("ps")
    assert isinstance(call, Call)
    assert call.process.stdout
    call.process.stdout.close()
    assert call.wait() in (0, 141)
    assert call.process.stderr
    assert "Traceback" not in call.process.stderr.read()
    call.process.stdout = open(os.devnull)  # noqa: SIM115, PTH123 -- the fixture reads it once more
