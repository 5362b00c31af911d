"""Manifests to pods: every file, every kind that makes pods, every dialect; and everything that is wrong.

Each file is a world of its own: the same name may stand in two files (then the file tells their pods apart), but
not twice in one. Pods of equal content are read once, so that the cost is that of the different ones.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tessera.core.errors import Problem, Severity
from tessera.core.request import Dialect, Pod
from tessera.wire.dialects import profile as profiles
from tessera.wire.dialects import read_pod
from tessera.wire.dialects.tensor_fusion import PROFILE
from tessera.wire.dialects.text import ContainerText, Pairs, PodText, Reading
from tessera.wire.documents import read_documents
from tessera.wire.fields import Findings, located
from tessera.wire.objects import KubernetesObject, Skipped, read_objects
from tessera.wire.podspec import Peak, Spec, peak_of, read_spec
from tessera.wire.workloads import Nodes, Workload, expand, makes_pods


@dataclass(frozen=True, slots=True)
class PlannedPod:
    """A valid pod, the file and the object (``Kind/namespace/name``) that it comes from, and its warnings.

    ``stays`` is for how many seconds a recorded pod was there, where that is known.
    """

    pod: Pod
    source: str
    object: str
    warnings: tuple[Problem, ...] = ()
    stays: int | None = None


@dataclass(frozen=True, slots=True)
class InvalidPod:
    """An object whose pods cannot be planned, everything wrong with it, and how many pods that concerns."""

    source: str
    object: str
    namespace: str
    name: str
    dialect: Dialect | None
    problems: tuple[Problem, ...]
    pods: int = 1


@dataclass(frozen=True, slots=True)
class Manifests:
    """Everything that was read, in the order of the input.

    ``problems`` are all errors of the input: those of files and objects, and after them those of ``invalid``.
    """

    pods: tuple[PlannedPod, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    problems: tuple[Problem, ...] = ()
    invalid: tuple[InvalidPod, ...] = ()


_Content = tuple[PodText, ContainerText, Pairs]


@dataclass(frozen=True, slots=True)
class _World:
    """What the reading of one object may look at beside it. ``memo`` holds what equal content came to."""

    nodes: Nodes
    profiles: Mapping[tuple[str, str, str], Pairs]
    ambiguous: frozenset[str]
    memo: dict[_Content, tuple[Reading, Peak, tuple[Problem, ...]]] = field(default_factory=dict)
    uids: set[str] = field(default_factory=set)


def read_manifests(texts: Sequence[tuple[str, str]], nodes: Nodes = ()) -> Manifests:
    """Every pod of ``texts``, which are pairs of a source (a file's name) and its text.

    ``nodes`` are the fleet's nodes with their labels: a DaemonSet makes one pod for each that it matches.
    Deterministic; errors are values in the answer, and nothing is raised.
    """
    problems: list[Problem] = []
    objects: list[KubernetesObject] = []
    pods: list[PlannedPod] = []
    skipped: list[Skipped] = []
    invalid: list[InvalidPod] = []
    for source, text in texts:
        documents, broken = read_documents(source, text)
        problems.extend(broken)
        found = tuple(read_objects(documents))
        objects.extend(item for item in found if isinstance(item, KubernetesObject))
        skipped.extend(item for item in found if isinstance(item, Skipped))
        problems.extend(problem for item in found if isinstance(item, tuple) for problem in item)
    world = _World(nodes, _read_profiles(objects, problems), _ambiguous(objects))
    for named in objects:
        match _read_object(named, world):
            case Skipped() as one:
                skipped.append(one)
            case InvalidPod() as one:
                invalid.append(one)
                problems.extend(one.problems)
            case planned:
                pods.extend(planned)
    return Manifests(tuple(pods), tuple(skipped), tuple(problems), tuple(invalid))


def _ambiguous(objects: Iterable[KubernetesObject]) -> frozenset[str]:
    """Labels that stand in more than one file."""
    return frozenset(label for label, times in Counter(named.label for named in objects).items() if times > 1)


def _read_profiles(
    objects: Iterable[KubernetesObject], problems: list[Problem]
) -> dict[tuple[str, str, str], Pairs]:
    """Profiles by file, namespace and name, and the first of each name without its file."""
    found: dict[tuple[str, str, str], Pairs] = {}
    for named in objects:
        if (named.kind, named.group) == (profiles.KIND, profiles.GROUP):
            findings = Findings()
            content = profiles.read_profile(named.raw, findings)
            problems.extend(located(findings.found, named.source, named.label))
            found[named.source, named.namespace, named.name] = content
            found.setdefault(("", named.namespace, named.name), content)
    return found


# one object


def _read_object(named: KubernetesObject, world: _World) -> Skipped | InvalidPod | tuple[PlannedPod, ...]:
    if not makes_pods(named.kind, named.group):
        return Skipped(named.source, named.kind, named.name, _why_skipped(named))
    findings = Findings()
    workload = expand(named.kind, named.name, named.raw, world.nodes, findings)
    if not workload.instances and not findings.failed:
        return Skipped(named.source, named.kind, named.name, workload.why)
    profile = _profile_of(named, workload, world)
    spec = read_spec(workload.metadata, workload.spec, profile, findings)
    reading, peak, miscounted = _read_content(spec, world)
    pods = tuple(_pods(named, workload, spec, (reading, peak), world.ambiguous))
    _check_uids(pods, world.uids, findings)
    found = located((*findings.found, *miscounted, *reading.findings), named.source, named.label)
    errors = tuple(problem for problem in found if problem.severity is Severity.ERROR)
    if errors:
        where = (named.source, named.label, named.namespace, named.name)
        return InvalidPod(*where, reading.dialect, errors, max(1, len(pods)))
    return tuple(PlannedPod(pod, named.source, named.label, found) for pod in pods)


def _why_skipped(named: KubernetesObject) -> str:
    if (named.kind, named.group) == (profiles.KIND, profiles.GROUP):
        return "makes no pods; it is read for the pods that name it"
    return f"makes no pods that can be planned ({named.group or 'v1'})"


def _profile_of(named: KubernetesObject, workload: Workload, world: _World) -> Pairs | None:
    """WorkloadProfile that the pod names, from its own file before any other."""
    annotations = workload.metadata.get("annotations")
    name = annotations.get(PROFILE) if isinstance(annotations, dict) else None
    if not isinstance(name, str):
        return None
    place = (named.namespace, name.strip())
    own = world.profiles.get((named.source, *place))
    return own if own is not None else world.profiles.get(("", *place))


def _read_content(spec: Spec, world: _World) -> tuple[Reading, Peak, tuple[Problem, ...]]:
    """Request and peak of a pod, and what is wrong with the latter, from memory where it was read before."""
    key = (spec.text, spec.whole, spec.overhead)
    known = world.memo.get(key)
    if known is None:
        findings = Findings()
        peak = peak_of(spec, findings)
        known = world.memo[key] = (read_pod(spec.text), peak, tuple(findings.found))
    return known


def _pods(
    named: KubernetesObject,
    workload: Workload,
    spec: Spec,
    content: tuple[Reading, Peak],
    ambiguous: frozenset[str],
) -> Iterator[Pod]:
    """Yield the object's pods. A uid that the object does not have is made of its identity and the ordinal."""
    reading, peak = content
    given = workload.metadata.get("uid") if named.kind == "Pod" else None
    file = f"@{named.source}" if named.label in ambiguous else ""
    containers = tuple(container.container for container in spec.text.containers)
    for instance in workload.instances:
        made = f"{named.label}/{instance.ordinal}{file}" if instance.ordinal else f"{named.label}{file}"
        yield Pod(
            namespace=named.namespace,
            name=instance.name,
            uid=given if isinstance(given, str) and given else made,
            containers=containers,
            request=reading.request,
            dialect=reading.dialect if reading.request else None,
            cpu_milli=peak.cpu_milli,
            memory_mib=peak.memory_mib,
            node_name=instance.node or spec.node_name,
            node_selector=spec.node_selector,
        )


def _check_uids(pods: Iterable[Pod], seen: set[str], findings: Findings) -> None:
    """Note a uid that another pod of the input has: identity is the uid, so one of them cannot be told apart.

    A uid made here repeats only with the object's name, which is a problem by itself; none but those has a slash.
    """
    for pod in pods:
        if pod.uid in seen and "/" not in pod.uid:
            findings.error("metadata.uid", pod.uid, "is the uid of another pod of the input", "remove it")
        seen.add(pod.uid)
