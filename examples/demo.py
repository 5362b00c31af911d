"""The demo: one cluster planned, one device shared by three tenants. Exit code 0 only if all of it happened.

1. Plans the manifests of ``examples/demo`` (HAMi's, TensorFusion's and the native dialect) on a fleet of the
   shape of the public openb cluster, and checks that what can be placed is placed and what cannot is explained.
2. Runs three tenants on one device: this machine's, or a simulated one where there is none (it says which).
   The first goes past its share and is refused exactly there; the second, at the same time, still gets all of
   its own; the third is killed with SIGKILL and its memory is back within a second.

Reads nothing outside the project, and keeps the ledger of its runs in a folder that it removes.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TESSERA = [str(Path(sys.executable).with_name("tessera"))]
SIMULATED = "1xA100-SXM4-80GB"
SHARE_MIB = {"first": 24 * 1024, "second": 16 * 1024, "third": 8 * 1024}
EXPECTED_REJECTIONS = {"merge-checkpoints", "fp8-bench", "sixteen-cards", "long-context", "render-farm"}


def say(text: str) -> None:
    """A line of the story."""
    print(text, flush=True)


def tessera(*arguments: str) -> subprocess.CompletedProcess[str]:
    """One call of the command, output kept."""
    return subprocess.run([*TESSERA, *arguments], capture_output=True, text=True, check=False)


def plan_cluster() -> list[str]:
    """Part 1. What went wrong, empty if nothing did."""
    arguments = ["plan", "-f", str(HERE / "demo"), "--fleet", str(HERE / "fleet-openb.yaml")]
    say("== 1. Plan: manifests of three dialects on 1,213 nodes with 6,212 devices\n")
    say(f"$ tessera {' '.join(a.replace(str(HERE), 'examples') for a in arguments)}\n")
    table = tessera(*arguments)
    say(table.stdout.replace(str(HERE), "examples"))
    document = json.loads(tessera(*arguments, "-o", "json").stdout)
    placed = [pod for pod in document["pods"] if pod["outcome"] == "placed"]
    rejected = [pod for pod in document["pods"] if pod["outcome"] == "rejected"]
    wrong = []
    if {pod["name"] for pod in rejected} != EXPECTED_REJECTIONS:
        wrong.append(f"other pods were rejected than expected: {[pod['name'] for pod in rejected]}")
    if {pod["dialect"] for pod in placed} != {"hami", "native", "tensor-fusion"}:
        wrong.append("some dialect had no pod placed")
    wrong += [f"{pod['name']} was rejected without a reason" for pod in rejected if not pod["reasons"]]
    wrong += [f"{pod['name']} was rejected without a suggestion" for pod in rejected if not pod["suggestions"]]
    if table.returncode != 1:
        wrong.append(f"plan ended with {table.returncode}, not 1 (some pods rejected)")
    return wrong


@dataclass
class Tenant:
    """A tenant that runs, and what it said first."""

    process: subprocess.Popen[str]
    answer: dict[str, Any]

    def stop(self) -> None:
        """Let go of the tenant and wait for its run to end."""
        if self.process.poll() is None and self.process.stdin:
            self.process.stdin.close()
        self.process.wait(timeout=20)


@contextmanager
def tenant(name: str, machine: list[str], *what: str) -> Iterator[Tenant]:
    """Start a tenant under a share of ``SHARE_MIB[name]`` and wait for its first word."""
    command = [*TESSERA, "run", *machine, "--name", name, "--memory", f"{SHARE_MIB[name]}Mi", "--quiet", "--"]
    process = subprocess.Popen(
        [*command, sys.executable, str(HERE / "tenant.py"), *what, "--hold"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    started = Tenant(process, json.loads(line) if line.startswith("{") else {"held_mib": -1, "code": -1, "pid": 0})
    try:
        yield started
    finally:
        started.stop()


def device(machine: list[str]) -> dict[str, Any]:
    """The first device as `tessera devices` shows it."""
    found: dict[str, Any] = json.loads(tessera("devices", *machine, "-o", "json").stdout)["devices"][0]
    return found


def choose_machine() -> list[str]:
    """This machine's device if it has one that is large and idle enough, else a simulated one; says which."""
    real = tessera("devices", "-o", "json")
    devices = json.loads(real.stdout)["devices"] if real.returncode == 0 else []
    if devices and devices[0]["memory_free_mib"] >= sum(SHARE_MIB.values()) and not devices[0]["memory_used_mib"]:
        say(f"== 2. Three tenants on this machine's {devices[0]['model']}\n")
        return []
    say(f"== 2. Three tenants on one SIMULATED device ({SIMULATED}): this machine has none that is free\n")
    return ["--simulate", SIMULATED]


def share_device() -> list[str]:
    """Part 2. What went wrong, empty if nothing did."""
    machine, wrong = choose_machine(), []
    with tenant("first", machine, "fill") as first:
        held = first.answer["held_mib"]
        say(f"first   asked for {SHARE_MIB['first']:,} MiB, then took all it could: {held:,} MiB, then refused")
        if (held, first.answer["code"]) != (SHARE_MIB["first"], 2):
            wrong.append(f"the first tenant got {held} MiB and code {first.answer['code']}")
        with tenant("second", machine, "take", str(SHARE_MIB["second"])) as second:
            held = second.answer["held_mib"]
            say(f"second  asked for {SHARE_MIB['second']:,} MiB beside it and got {held:,} MiB")
            if held != SHARE_MIB["second"]:
                wrong.append(f"the second tenant got {held} MiB of its {SHARE_MIB['second']}")
            say("\n" + tessera("ps").stdout)
            wrong += kill_third(machine)
    return wrong


def kill_third(machine: list[str]) -> list[str]:
    """Kill a tenant with SIGKILL; its memory must be back on the device within a second."""
    before = device(machine)["memory_used_mib"]
    with tenant("third", machine, "take", str(SHARE_MIB["third"])) as third:
        during = device(machine)["memory_used_mib"]
        os.kill(third.answer["pid"], signal.SIGKILL)
        start = time.monotonic()
        while (now := device(machine)["memory_used_mib"]) > before and time.monotonic() - start < 10:
            pass
        took = time.monotonic() - start
    say(f"third   held {during - before:,} MiB and was killed with SIGKILL; they were back after {took:.2f} s")
    wrong = [] if during - before >= SHARE_MIB["third"] else ["the third tenant did not hold its share"]
    if now > before or took > 1:
        wrong.append(f"the third tenant's memory was not back within a second ({took:.2f} s)")
    return wrong


def main() -> int:
    """Run both parts; 0 only if everything happened as told."""
    with tempfile.TemporaryDirectory(prefix="tessera-demo-") as state:
        os.environ["TESSERA_STATE_DIR"] = state
        wrong = plan_cluster() + share_device()
    say("\n" + ("\n".join(f"FAILED: {line}" for line in wrong) or "All of it happened as told."))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
