"""What a pod says, as text: the input of every dialect, and the reading that comes out.

Only what a dialect may look at is here, and everything is hashable, so that equal pods are read once. Values are
text as the API server would hand it over; numbers are parsed here, in one place, with one set of messages.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from typing import Final

from tessera.core.errors import Problem
from tessera.core.request import Container, Dialect, Request
from tessera.core.units import MiB, Milli
from tessera.wire.fields import Findings
from tessera.wire.quantity import Malformed, parse_quantity, to_count, to_mib, to_milli

Pairs = tuple[tuple[str, str], ...]

MOST_DEVICES: Final = 128
"""Source: TensorFusion's range of gpu-count; no machine has more."""
_MOST_MIB: Final = 2**31 - 1

NATIVE_PREFIX: Final = "tessera.dev/"
HAMI_PREFIX: Final = "hami.io/"
TENSOR_FUSION_PREFIX: Final = "tensor-fusion.ai/"


@dataclass(frozen=True, slots=True)
class ContainerText:
    """One container: its resources as text, and two switches that matter to limits."""

    container: Container
    limits: Pairs = ()
    requests: Pairs = ()
    unlimited: bool = False
    privileged: bool = False

    @property
    def name(self) -> str:
        """Name of the container."""
        return self.container.name

    def resources(self) -> dict[str, str]:
        """Every resource by name, its limit before its request."""
        return dict(self.requests) | dict(self.limits)

    def field(self, resource: str) -> str:
        """Path of ``resource`` for messages, on the side where it is written."""
        side = "limits" if any(key == resource for key, _ in self.limits) else "requests"
        return f"containers[{self.name}].resources.{side}[{resource}]"


@dataclass(frozen=True, slots=True)
class PodText:
    """A pod: its annotations and labels under the prefixes that dialects read, its containers, its profile.

    ``profile`` is the content of the WorkloadProfile that the pod names, ``None`` where it is not in the input.
    """

    containers: tuple[ContainerText, ...]
    annotations: Pairs = ()
    labels: Pairs = ()
    profile: Pairs | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """A pod in Tessera's vocabulary: ``request`` is ``None`` where it asks for nothing, or is invalid."""

    dialect: Dialect | None = None
    request: Request | None = None
    findings: tuple[Problem, ...] = ()


def reading(dialect: Dialect, request: Request | None, findings: Findings) -> Reading:
    """Return ``request`` with its findings, or without a request where one of them is an error."""
    return Reading(dialect, None if findings.failed else request, tuple(findings.found))


def annotation(key: str) -> str:
    """Path of an annotation for messages."""
    return f"annotations[{key}]"


def read_number(text: str, field: str, findings: Findings) -> Fraction | None:
    """Exact value of a quantity; ``None``, with a problem noted, where it is none."""
    value = parse_quantity(text)
    if isinstance(value, Malformed):
        findings.error(field, text, value.message, value.remedy)
        return None
    return value


def read_whole(text: str, field: str, findings: Findings) -> int | None:
    """Whole number of an extended resource; ``None``, with a problem noted, where it is none."""
    value = read_number(text, field, findings)
    if value is None:
        return None
    whole = to_count(value)
    if isinstance(whole, Malformed):
        findings.error(field, text, whole.message, whole.remedy)
        return None
    return whole


def read_devices(text: str, field: str, findings: Findings) -> int | None:
    """Count of devices, from 1 to 128; ``None``, with a problem noted, where it is none."""
    count = read_whole(text, field, findings)
    if count is None or 1 <= count <= MOST_DEVICES:
        return count
    remedy = f"write 1 to {MOST_DEVICES}; leave the line out to ask for no device"
    findings.error(field, text, "is no number of devices that one node can give", remedy)
    return None


def read_percent(text: str, field: str, findings: Findings) -> Milli | None:
    """Percent of a device from 0 to 100, as thousandths; ``None``, with a problem noted, where it is none."""
    value = read_number(text, field, findings)
    if value is None or value <= 100:
        return None if value is None else to_milli(value / 100)
    findings.error(field, text, "is more than 100 percent of a device", "write 0 to 100; it counts per device")
    return None


def read_whole_percent(text: str, field: str, findings: Findings) -> Milli | None:
    """Whole percent of a device from 0 to 100, as thousandths; ``None``, with a problem noted, elsewhere."""
    return None if read_whole(text, field, findings) is None else read_percent(text, field, findings)


def read_bytes(text: str, field: str, findings: Findings) -> MiB | None:
    """Memory in MiB from a quantity of bytes, rounded up; ``None``, with a problem noted, where it is none."""
    value = read_number(text, field, findings)
    return None if value is None else read_mib(to_mib(value), text, field, findings)


def read_mib(mib: int, text: str, field: str, findings: Findings) -> MiB | None:
    """Return ``mib`` if a device could ever have that much."""
    if mib <= _MOST_MIB:
        return MiB(mib)
    findings.error(field, text, "is more memory than any device has", "check the unit")
    return None


def warn_misspelt(keys: Iterable[str], known: Iterable[str], prefix: str, findings: Findings) -> None:
    """Warn of annotations under ``prefix`` that read almost like a known one; others are not ours to judge."""
    names = sorted(known)
    for key in keys:
        near = (
            get_close_matches(key, names, n=1, cutoff=0.85) if key.startswith(prefix) and key not in names else ()
        )
        if near:
            findings.warn(annotation(key), "", "is not a known key and has no effect", f"did you mean {near[0]}?")
