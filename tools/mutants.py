"""Show that each law can fail: break the code in one place, run the law, expect it to object.

Usage: ``python tools/mutants.py [NAME ...]``. Each mutant is one textual change to one module and the law
that must kill it. The change is made in a copy of the package, never in the tree. Exits 1 if a mutant lives,
or if its text is no longer in the code (then the mutant must be renewed with the code).
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LAWS = "tests/laws"
EXAMPLES = 200
FEW_EXAMPLES = 10


@dataclass(frozen=True)
class Mutant:
    """A change (``old`` becomes ``new`` in ``module``) and the law that must notice it."""

    name: str
    module: str
    old: str
    new: str
    law: str


MUTANTS = (
    Mutant(
        "memory off by one",
        "allocator/fit.py",
        "view.memory > view.need.memory_room",
        "view.memory > view.need.memory_room + 1",
        "placed_exactly_when",
    ),
    Mutant(
        "memory too strict",
        "allocator/fit.py",
        "view.memory > view.need.memory_room",
        "view.memory >= view.need.memory_room",
        "placed_exactly_when",
    ),
    Mutant(
        "slots ignored",
        "allocator/fit.py",
        "view.slots >= view.most_slots",
        "view.slots > view.most_slots",
        "oversubscribed",
    ),
    Mutant(
        "exclusive holder ignored",
        "allocator/fit.py",
        "view.exclusive > 0",
        "view.exclusive > 1",
        "oversubscribed",
    ),
    Mutant(
        "compute unchecked in search",
        "allocator/search.py",
        "need[1] <= device.compute",
        "need[0] <= device.compute",
        "placed_exactly_when",
    ),
    Mutant(
        "init containers overlap later sidecars",
        "core/request.py",
        "found.append(sidecars | {container.name})",
        'found.append(frozenset(c.name for c in containers if c.kind == "sidecar") | {container.name})',
        "placed_exactly_when",
    ),
    Mutant(
        "one NUMA node not asked for",
        "allocator/search.py",
        "if not rules.one_numa or claim.count == 1:",
        "if True:",
        "placed_exactly_when",
    ),
    Mutant(
        "distinct devices not asked for",
        "allocator/search.py",
        "not (rules.distinct and state.touched[j])",
        "True",
        "placed_exactly_when",
    ),
    Mutant(
        "same device only for the first",
        "allocator/search.py",
        "if taken is not None:",
        "if taken is not None and len(chosen) > 1:",
        "placed_exactly_when",
    ),
    Mutant(
        "search gives up after one choice",
        "allocator/search.py",
        "            chosen.pop()\n",
        "            chosen.pop()\n            return False\n",
        "placed_exactly_when",
    ),
    Mutant(
        "alike devices too coarse",
        "allocator/search.py",
        "(self.devices[j], self.touched[j] > 0, used,",
        "(self.devices[j].memory, self.touched[j] > 0,",
        "placed_exactly_when",
    ),
    Mutant(
        "release keeps the slots",
        "core/fleet.py",
        "self.slots[row] += sign * charge.slots",
        "self.slots[row] += max(sign, 0) * charge.slots",
        "releasing_undoes",
    ),
    Mutant(
        "release keeps the pod's place",
        "core/fleet.py",
        "self.pods[row] += sign",
        "self.pods[row] += 1",
        "releasing_undoes",
    ),
    Mutant(
        "commit loses the entry",
        "allocator/ledger.py",
        "self._entries[uid] = replace(entry, committed=True, expires=None)",
        "del self._entries[uid]",
        "rebuilt_from_the_log",
    ),
    Mutant(
        "a rebuild loses the first",
        "allocator/ledger.py",
        "(entry.placement for entry in ledger._entries.values())",
        "[entry.placement for entry in ledger._entries.values()][1:]",
        "order_of_independent_events",
    ),
    Mutant(
        "snapshot shares its arrays",
        "allocator/ledger.py",
        "self._usage, self._shared = self._usage.thawed(), False",
        "[getattr(self._usage, n).setflags(write=True) for n in Usage.__slots__]",
        "snapshot_does_not_change",
    ),
    Mutant(
        "peak counts the sum",
        "allocator/grants.py",
        "[max(column) for column",
        "[sum(column) for column",
        "charged_the_peak",
    ),
    Mutant(
        "a node without a group",
        "allocator/explain.py",
        "np.unique(keys[keys >= 0]).tolist()",
        "np.unique(keys[keys >= 0]).tolist()[1:]",
        "exactly_one_reason_group",
    ),
    Mutant(
        "the index forgets what was booked",
        "allocator/index.py",
        "elif known.moment != self._ledger.moment or known.generation != self._outlook.generation:",
        "elif False:",
        "index_answers",
    ),
    Mutant(
        "a node needs a device more than is asked",
        "allocator/look.py",
        "counted[starts[1:]] - counted[starts[:-1]] >= claim.count",
        "counted[starts[1:]] - counted[starts[:-1]] > claim.count",
        "index_answers",
    ),
    Mutant(
        "the index takes barred nodes",
        "allocator/index.py",
        "left[[row for name in barred if",
        "left[[row for name in () if",
        "index_answers",
    ),
    Mutant(
        "a patched fleet keeps unused kinds",
        "core/fleet.py",
        "used = {old[code] for code in np.unique(codes[from_device[from_device >= 0]])}",
        "used = set(old)",
        "patched_fleet",
    ),
    Mutant(
        "a device that is back holds nothing",
        "allocator/ledger.py",
        "if charge.uuid in devices]",
        "if charge.uuid not in devices]",
        "left_with_a_node",
    ),
    Mutant(
        "one node forgets exclusive holders",
        "allocator/single.py",
        "not passes(device, rules) or tally.exclusive",
        "not passes(device, rules)",
        "without_arrays",
    ),
    Mutant(
        "one node forgets the pod count",
        "allocator/single.py",
        "len(self._placed) + 1 <= node.max_pods",
        "len(self._placed) <= node.max_pods",
        "without_arrays",
    ),
    Mutant(
        "one device forgets the denied uuids",
        "allocator/rules.py",
        " or d.uuid in c.uuids_denied",
        "",
        "same_devices_out",
    ),
    Mutant(
        "a moved pod may take the newcomer's room",
        "allocator/drain.py",
        "        _book(fleet, usage, placed.placement, 1)\n",
        "",
        "a_plan_is_legal_at_every_step",
    ),
    Mutant(
        "one move more than allowed",
        "allocator/drain.py",
        "if len(leavers) <= most",
        "if len(leavers) <= most + 1",
        "moves_at_most_so_many",
    ),
    Mutant(
        "pods that must stay are moved",
        "allocator/drain.py",
        "enumerate(stays) if why is None",
        "enumerate(stays)",
        "moves_at_most_so_many",
    ),
    Mutant(
        "equal priority is moved for",
        "allocator/moves.py",
        "theirs >= ours + (reach is Reach.EQUAL)",
        "theirs > ours + (reach is Reach.EQUAL)",
        "found_exactly_where_one_move",
    ),
    Mutant(
        "reservations are moved",
        "allocator/moves.py",
        "(not tenant.committed, Stays.RESERVED)",
        "(False, Stays.RESERVED)",
        "found_exactly_where_one_move",
    ),
    Mutant(
        "a device is freed by more than needed only",
        "allocator/vacate.py",
        "all(o <= t for o, t",
        "all(o < t for o, t",
        "found_exactly_where_one_move",
    ),
)


def selection(law: str) -> str:
    """What picks a law's tests for pytest; the widest without one policy, since none changes what is legal."""
    return f"{law} and not spread" if "placed" in law else law


def run_laws(package_root: Path, laws: Iterable[str], examples: int) -> subprocess.CompletedProcess[str]:
    """Run laws against the package copied under ``package_root``, as far as the first that objects."""
    environment = {**os.environ, "PYTHONPATH": str(package_root), "TESSERA_LAW_EXAMPLES": str(examples)}
    chosen = " or ".join(f"({selection(law)})" for law in laws)
    return subprocess.run(
        [sys.executable, "-m", "pytest", LAWS, "-x", "-q", "--hypothesis-profile=mutants", "-k", chosen],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def copy_package(folder: str) -> Path:
    """A copy of the package to break."""
    package = Path(folder) / "tessera"
    shutil.copytree(ROOT / "src/tessera", package, ignore=shutil.ignore_patterns("_native", "__pycache__"))
    return package


def survives(mutant: Mutant) -> str:
    """Why the mutant counts as alive, or empty where the law killed it."""
    with tempfile.TemporaryDirectory() as folder:
        module = copy_package(folder) / mutant.module
        source = module.read_text(encoding="utf-8")
        if mutant.old not in source:
            return f"its text is no longer in {mutant.module}"
        module.write_text(source.replace(mutant.old, mutant.new, 1), encoding="utf-8")
        run = run_laws(Path(folder), [mutant.law], EXAMPLES)
    return "" if run.returncode == 1 else f"the law exited {run.returncode}: {run.stdout[-300:]}"


def unbroken(laws: set[str]) -> bool:
    """Whether every law passes on a copy of the code as it is; without that a kill would say nothing.

    Few examples do: that the laws hold is what ``pytest tests/laws`` shows, here they show that they run.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy_package(folder)
        run = run_laws(Path(folder), sorted(laws), FEW_EXAMPLES)
    if run.returncode:
        print(f"BROKEN  a law fails on the unchanged code:\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
    return run.returncode == 0


def main(names: list[str]) -> int:
    """Try every mutant, or those named."""
    chosen = [m for m in MUTANTS if not names or m.name in names]
    if not chosen or not unbroken({m.law for m in chosen}):
        return 1
    alive = 0
    for mutant in chosen:
        why = survives(mutant)
        alive += bool(why)
        print(f"{'ALIVE ' if why else 'killed'}  {mutant.name}  (by: {mutant.law}) {why}")
    print(f"{len(chosen) - alive} killed, {alive} alive")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
