"""What ``tessera run`` promises to the one who calls it and to the neighbours. Real processes throughout."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from local.world import TESSERA, Call, World, until
from tessera.runtime.proc import command_of, identity_of

OUT_OF_MEMORY = "2"
GIB = 1024 * 1024 * 1024


def test_a_tenant_is_refused_exactly_past_its_share_and_its_neighbour_gets_all_of_its_own(
    world: World, tenant: Path
) -> None:
    one = world.run("-q", "--memory", "8Gi", "--", str(tenant))
    two = world.run("-q", "--memory", "72Gi", "--", str(tenant))
    assert [one.say("alloc 8191"), one.say("alloc 1"), one.say("bytes 1")] == ["0", "0", OUT_OF_MEMORY]
    assert [two.say("alloc 73727"), two.say("alloc 1"), two.say("bytes 1")] == ["0", "0", OUT_OF_MEMORY]
    assert one.say("free") == "0"
    assert one.say("alloc 1") == "0", "what was freed can be had again"
    assert (one.end().code, two.end().code) == (0, 0)


def test_a_tenant_sees_its_share_as_the_device(world: World, tenant: Path) -> None:
    call = world.run("-q", "--memory", "25%", "--", str(tenant))
    assert call.say("info") == f"{20 * GIB} {20 * GIB}"
    assert call.say("alloc 1024") == "0"
    assert call.say("info") == f"{19 * GIB} {20 * GIB}"


def test_a_killed_tenants_memory_is_back_while_the_share_goes_on(world: World, tenant: Path) -> None:
    fifo = world.state.parent / "fifo"
    os.mkfifo(fifo)
    call = world.run("-q", "--memory", "8Gi", "--", "sh", "-c", f"{tenant} < {fifo}; exec {tenant}")
    with fifo.open("w") as told:
        print("pid\nalloc 8192", file=told, flush=True)
        victim, answer = int(call.hear()), call.hear()
        assert answer == "0"
        os.kill(victim, signal.SIGKILL)
        until(lambda: world.runs()[0]["devices"][0]["memory_used_mib"] == 0, "the dead tenant's memory is free")
    assert call.say("alloc 8192") == "0"


def test_the_exit_code_is_the_commands(world: World) -> None:
    for command, code in (("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 128 + 15), ("kill -KILL $$", 128 + 9)):
        assert world.run("-q", "--memory", "1Gi", "--", "sh", "-c", command).end().code == code


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--memory", "1Gi", "--", "no-such-command-here"), 127, "no such command"),
        (("--memory", "1Gi", "--", "/etc/passwd"), 126, "may not be executed"),
        (("--memory", "1Gi", "--", "/etc"), 126, "is a directory"),
        (("--memory", "8", "--", "true"), 2, "number without a unit"),
        (("--memory", "8Gi", "--name", "a b", "--", "true"), 2, "is no name"),
        (("--timeout", "1s", "--", "true"), 2, "--wait"),
        ((), 2, "COMMAND"),
        (("--memory", "100Gi", "--", "true"), 1, "largest free 81,920 MiB"),
        (("--model", "H100", "--", "true"), 1, "not allowed"),
        (("--model", "H1000", "--", "true"), 1, "did you mean"),
    ],
)
def test_what_cannot_start_says_why(world: World, words: tuple[str, ...], code: int, message: str) -> None:
    ended = world.run(*words).end()
    assert (ended.code, ended.out) == (code, "")
    assert message in ended.err
    assert "Traceback" not in ended.err
    assert (world.runs(), world.regions) == ([], [])


def test_a_machine_that_nobody_knows_is_refused_with_the_nearest(world: World) -> None:
    world.machine = "4xT5"
    ended = world.run("--", "true").end()
    assert ended.code == 2
    assert "Tesla T4" in ended.err


def test_without_a_driver_there_is_a_way_to_try(world: World) -> None:
    ended = world.call("run", "--memory", "1Gi", "--", "true", PATH=os.environ["PATH"])
    if ended.code:  # a machine with a driver runs it
        assert "--simulate 1xA100-SXM4-80GB" in ended.err


def test_the_environment_is_the_callers_with_the_share_added(world: World) -> None:
    world.machine = "4xT4"
    other = world.run("-q", "--", "cat")
    until(lambda: len(world.runs()) == 1, "the first device is taken")
    call = world.run(
        "-q", "--devices", "2", "--name", "mine", "--", "env",
        LD_LIBRARY_PATH="/mine", OPENBLAS_NUM_THREADS="7", MARK="there",
    )  # fmt: skip
    found = dict(line.split("=", 1) for line in call.end().out.splitlines() if "=" in line)
    uuids = [device["uuid"] for device in world.devices()]
    assert found["CUDA_VISIBLE_DEVICES"] == found["NVIDIA_VISIBLE_DEVICES"] == f"{uuids[1]},{uuids[2]}"
    assert found["LD_PRELOAD"].endswith("/libtessera.so")
    assert found["LD_LIBRARY_PATH"].split(":")[1:] == ["/mine"]
    assert (found["TESSERA_RUN"], found["OPENBLAS_NUM_THREADS"], found["MARK"]) == ("mine", "7", "there")
    assert "OMP_NUM_THREADS" not in found or "OMP_NUM_THREADS" in os.environ
    other.end()


def test_simulated_is_said_and_who_holds_the_compute_limit(world: World) -> None:
    ended = world.run("--compute", "30%", "--", "true").end()
    first, second = ended.err.splitlines()
    assert "(simulated)" in first
    assert "24,576 MiB, 30% compute" in first, "30% of 81,920 MiB, because memory was not said"
    assert "held by libtessera.so in every process of the run" in second
    assert "on a real device it was never tried" in second


def test_a_run_that_may_have_all_of_the_compute_is_told_nothing_of_a_limit(world: World) -> None:
    for words in (("--memory", "1Gi"), ("--compute", "100%")):
        assert len(world.run(*words, "--", "true").end().err.splitlines()) == 1


def test_a_run_within_a_run_is_refused(world: World) -> None:
    words = (*TESSERA, "run", "--memory", "1Gi", "--", "true")
    ended = world.run("-q", "--memory", "2Gi", "--name", "outer", "--", *words).end()
    assert ended.code == 1
    assert "inside of run outer" in ended.err


def _source() -> str:
    import tessera  # noqa: PLC0415

    return str(Path(tessera.__file__).parent.parent)


def test_a_signal_is_passed_on(world: World) -> None:
    script = "trap 'echo got; exit 5' USR1; echo ready; while :; do read line; done"
    call = world.run("-q", "--memory", "1Gi", "--", "sh", "-c", script)
    assert call.hear() == "ready"
    os.kill(call.pid, signal.SIGUSR1)
    call.say("")
    assert call.wait() == 5


def test_the_share_outlives_the_command_while_what_it_left_holds_memory(world: World, tenant: Path) -> None:
    call = world.run("--memory", "8Gi", "--", str(tenant))
    assert call.say("alloc 1024") == "0"
    child = int(call.say("fork"))
    assert call.say("alloc 512") in ("0", "3", "201"), "whatever a driver says after fork"
    until(lambda: identity_of(child) is not None, "the child is there")
    ended = call.end()
    assert ended.code == 0
    assert world.runs() == []


@pytest.fixture
def left(world: World, tenant: Path) -> Iterator[tuple[Call, TextIO]]:
    """A run whose command left a tenant with 1 GiB behind, and what that tenant is told by."""
    fifo = world.state.parent / "fifo"
    os.mkfifo(fifo)
    call = world.run("--memory", "8Gi", "--", "sh", "-c", f"{tenant} < {fifo} & read line; exit 3")
    with fifo.open("w") as told:
        print("alloc 1024", file=told, flush=True)
        assert call.hear() == "0"
        assert call.process.stdin
        print(file=call.process.stdin, flush=True)
        until(lambda: "staying" in call.hear_error(), "it says that it stays")
        yield call, told


def test_left_processes_that_hold_the_share_keep_it_until_they_end(
    world: World, left: tuple[Call, TextIO]
) -> None:
    call, told = left
    (run,) = world.runs()
    assert run["devices"][0]["memory_used_mib"] == 1024
    told.close()
    assert call.end().code == 3
    assert world.runs() == []


def test_ctrl_c_while_staying_ends_what_was_left(left: tuple[Call, TextIO]) -> None:
    call, _ = left
    os.kill(call.pid, signal.SIGINT)
    assert call.end().code == 3


def test_who_was_left_without_anything_gets_nothing_afterwards(world: World, tenant: Path) -> None:
    fifo = world.state.parent / "fifo"
    os.mkfifo(fifo)
    call = world.run("-q", "--memory", "8Gi", "--", "sh", "-c", f"{tenant} < {fifo} & read line")
    with fifo.open("w") as told:
        print("pid", file=told, flush=True)
        assert call.hear().isdigit(), "it runs, and has not touched the device"
        assert call.process.stdin
        print(file=call.process.stdin, flush=True)
        assert call.wait() == 0
        print("alloc 1", file=told, flush=True)
        assert call.hear() not in ("", "0")


@pytest.mark.parametrize("how", ["static", "env -u"])
def test_who_escapes_the_limit_is_stopped_and_told_the_way_past(
    world: World, tenant: Path, static_tenant: Path, how: str
) -> None:
    words = (str(static_tenant),) if how == "static" else ("env", "-u", "LD_PRELOAD", str(tenant))
    call = world.run("--memory", "8Gi", "--", *words)
    pid = int(call.say("pid"))
    name = command_of(pid)
    call.say("alloc 16384")
    assert call.wait() == 128 + signal.SIGKILL
    said = call.process.stderr.read()  # type: ignore[union-attr]
    for part in (f"process {pid}", name, "device 0", "--allow-unlimited"):
        assert part in said
    if how == "static":
        assert "note:" in said.splitlines()[1]
    assert world.runs() == []


def test_who_is_allowed_to_be_unlimited_is_only_warned_of(world: World, static_tenant: Path) -> None:
    call = world.run("--memory", "8Gi", "--allow-unlimited", "--", str(static_tenant))
    assert call.say("alloc 16384") == "0", "twice its share"
    until(lambda: "warning: process" in call.hear_error(), "the warning")
    assert call.say("alloc 1") == "0"
    assert call.end().code == 0


def test_a_static_program_that_uses_no_device_runs_to_its_end(world: World, static_tenant: Path) -> None:
    call = world.run("--memory", "8Gi", "--", str(static_tenant))
    for _ in range(20):
        assert call.say("pid").isdigit()
    assert call.end().code == 0


def test_only_our_own_unlimited_processes_are_stopped(world: World, static_tenant: Path, tenant: Path) -> None:
    call = world.run("-q", "--memory", "8Gi", "--", str(tenant))
    assert call.say("alloc 1") == "0"
    machine = next(world.state.glob("sim/*/machine.conf"))
    environment = {**os.environ, "TESSERA_SIM_MACHINE": str(machine)}
    with subprocess.Popen(
        [static_tenant], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as neighbour:
        assert neighbour.stdin
        assert neighbour.stdout
        neighbour.stdin.write("alloc 1\n")
        neighbour.stdin.flush()
        assert neighbour.stdout.readline() == "0\n"
        escaping = world.run("-q", "--memory", "8Gi", "--", str(static_tenant))
        escaping.say("alloc 1")
        assert escaping.wait() == 128 + signal.SIGKILL, "ours was seen by now, and so would the other be"
        neighbour.stdin.write("alloc 1\n")
        neighbour.stdin.flush()
        assert neighbour.stdout.readline() == "0\n"
        neighbour.stdin.close()
    assert call.end().code == 0


def test_a_missing_library_starts_nothing(world: World, tmp_path: Path) -> None:
    source = Path(_source()) / "tessera"
    copy = tmp_path / "copy" / "tessera"
    copy.mkdir(parents=True)
    for entry in source.iterdir():
        if entry.name != "_native":
            (copy / entry.name).symlink_to(entry)
    mark = tmp_path / "mark"
    ended = world.run("--memory", "1Gi", "--", "touch", str(mark), PYTHONPATH=str(copy.parent)).end()
    assert ended.code == 1
    assert "make native" in ended.err
    assert not mark.exists()


def test_the_second_process_sees_what_the_third_took_after_the_first_is_gone(world: World, tenant: Path) -> None:
    """Slots are not compacted under the living (HAMi-core#191)."""
    call = world.run("-q", "--memory", "8Gi", "--", "sh", "-c", f"{tenant} < /dev/null; {tenant} & exec {tenant}")
    assert call.say("info") == f"{8 * GIB} {8 * GIB}"
    assert call.say("alloc 1024") == "0"
    assert call.say("info") == f"{7 * GIB} {8 * GIB}"


def test_pairs_of_asynchronous_allocations_do_not_drift(world: World, tenant: Path) -> None:
    """200 times 32 MiB taken and given back within 512 MiB (HAMi-core#96)."""
    call = world.run("-q", "--memory", "512Mi", "--", str(tenant))
    for _ in range(200):
        assert (call.say("async 32"), call.say("async-free")) == ("0", "0")
    assert [call.say("async 32") for _ in range(17)] == ["0"] * 16 + [OUT_OF_MEMORY]


def test_free_never_wraps_and_never_exceeds_the_share(world: World, tenant: Path) -> None:
    """Any order of taking and giving: 0 <= free <= limit (HAMi#1181)."""
    call = world.run("-q", "--memory", "64Mi", "--", str(tenant))
    held: list[int] = []
    for step in range(60):
        size = 1 + (7 * step) % 23
        if step % 5 < 3:
            fits = sum(held) + size <= 64
            assert call.say(f"alloc {size}") == ("0" if fits else OUT_OF_MEMORY)
            held += [size] if fits else []
        elif held:
            held.pop()
            assert call.say("free") == "0"
        assert call.say("info") == f"{(64 - sum(held)) << 20} {64 << 20}"
