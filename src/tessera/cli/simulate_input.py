"""What ``tessera simulate`` reads: nodes, pods and sequences, and everything that is wrong with them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from tessera.cli.plan import without_unknown_labels
from tessera.cli.world import has_labels, read
from tessera.core.errors import InputErrors, Problem, Severity
from tessera.runtime.files import Texts, load_fleet, read_texts
from tessera.simulator.sequences import Arrays, read_sequence
from tessera.simulator.stream import sequence_problems
from tessera.simulator.trace import Trace, strangers, trace_of
from tessera.wire.decisionlog import read_log
from tessera.wire.fleetfile import FleetInput
from tessera.wire.manifests import PlannedPod


@dataclass(frozen=True, slots=True)
class Found:
    """What was read; ``digest`` is of the content of all files, ``notes`` are for people."""

    fleet: FleetInput
    trace: Trace
    sequence: Arrays | None
    digest: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Named:
    """What the command line names: a fleet, files of pods, a scheduler's log, a sequence."""

    nodes: str
    pods: tuple[str, ...]
    log: str | None
    sequence: Path | None


def read_files(named: Named, seeds: Sequence[int]) -> Found:
    """The study's inputs. Raises :class:`InputErrors` with everything that is wrong with them."""
    fleet, sequence = load_fleet(named.nodes), named.sequence
    texts, logs = read_texts(named.pods), read_texts([named.log] if named.log else [])
    manifests = read(texts, fleet)
    logged = [read_log(source, text) for source, text in logs.texts]
    arrays = None if sequence is None else read_sequence(sequence)
    problems = [p for p in manifests.problems if p.severity is Severity.ERROR]
    problems += [*logs.problems, *(problem for log in logged for problem in log.problems)]
    if isinstance(arrays, Problem):
        problems.append(arrays)
    if problems:
        raise InputErrors(problems)
    assert not isinstance(arrays, Problem)
    planned = [*manifests.pods, *(pod for log in logged for pod in log.pods)]
    skipped = sum(log.skipped for log in logged)
    if skipped:
        note = f"{skipped:,} pods of the log are left out: it does not say what they asked for"
        fleet = replace(fleet, notes=(*fleet.notes, note))
    content = Texts((*texts.texts, *logs.texts), ())
    digest = _digest(content, named.nodes, sequence)
    return found_of(fleet, planned, arrays, seeds, digest=digest, sequence=sequence)


def found_of(
    fleet: FleetInput,
    planned: Sequence[PlannedPod],
    arrays: Arrays | None,
    seeds: Sequence[int],
    *,
    digest: str,
    sequence: Path | None = None,
) -> Found:
    """The same from what was read already."""
    pods, notes = [one.pod for one in planned], fleet.notes
    if not has_labels(fleet):
        loose = [without_unknown_labels(pod) for pod in pods]
        notes = (
            notes if loose == pods else (*notes, "the fleet gives no labels, so node selectors are not looked at")
        )
        pods = loose
    trace = trace_of(pods, fleet.nodes, [one.stays for one in planned])
    problems = [*_empty(fleet, pods), *strangers(trace, [one.source for one in planned])]
    if arrays is not None:
        problems += sequence_problems(str(sequence), arrays, seeds, len(pods), len(fleet.nodes))
    if problems:
        raise InputErrors(problems)
    return Found(fleet, trace, arrays, digest, notes)


def _empty(fleet: FleetInput, pods: Sequence[object]) -> Iterator[Problem]:
    if not fleet.nodes:
        yield Problem("--nodes", "", "", "", "has no node", "name a fleet that has some")
    if not pods:
        yield Problem("--pods", "", "", "", "has no pod", "name files that have some")


def _digest(texts: Texts, nodes: str, sequence: Path | None) -> str:
    """A number of what the files hold, so that a simulation of other content is not taken for this one."""
    made = sha256()
    for source, text in texts.texts:
        made.update(f"{source}\0{text}\0".encode())
    named = (Path(nodes), *([] if sequence is None else [sequence]))
    for path in named:
        made.update(path.read_bytes() if path.is_file() else str(path).encode())
    return made.hexdigest()
