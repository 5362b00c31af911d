"""Which dialect a pod is written in. Exactly one: two that contradict are a problem, never a guess."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from tessera.core.request import Dialect
from tessera.vendors.registry import foreign_resource
from tessera.wire.dialects.hami import read_hami, shares_hami, uses_hami
from tessera.wire.dialects.native import forged_decisions, read_native, uses_native
from tessera.wire.dialects.tensor_fusion import read_tensor_fusion, uses_tensor_fusion
from tessera.wire.dialects.text import PodText, Reading
from tessera.wire.fields import Findings

DIALECTS: Final[Mapping[Dialect, Callable[[PodText], Reading]]] = {
    Dialect.NATIVE: read_native,
    Dialect.TENSOR_FUSION: read_tensor_fusion,
    Dialect.HAMI: read_hami,
}


def dialects_of(pod: PodText) -> tuple[Dialect, ...]:
    """Dialects that ``pod`` uses, in the order in which they are tried.

    A count of devices in HAMi's resource is what any Kubernetes user writes, so beside TensorFusion's annotations
    it is theirs; only a *share* in HAMi's resources makes such a pod HAMi's too.
    """
    native, fusion = uses_native(pod), uses_tensor_fusion(pod)
    hami = shares_hami(pod) if fusion else uses_hami(pod)
    used = {Dialect.NATIVE: native, Dialect.TENSOR_FUSION: fusion, Dialect.HAMI: hami}
    return tuple(dialect for dialect in DIALECTS if used[dialect])


def read_pod(pod: PodText) -> Reading:
    """Request of ``pod`` in whatever dialect it is written, with every problem and warning.

    Deterministic, and a function of ``pod`` alone, so that equal pods need to be read only once.
    """
    used = dialects_of(pod)
    if len(used) > 1:
        forged = forged_decisions(pod).found
        return Reading(used[0], None, tuple(forged)) if forged else _contradiction(used)
    found = DIALECTS[used[0]](pod) if used else Reading()
    foreign = _warn_of_foreign(pod)
    return replace(found, findings=(*found.findings, *foreign.found)) if foreign.found else found


def _contradiction(used: tuple[Dialect, ...]) -> Reading:
    findings = Findings()
    message = f"asks for devices in {len(used)} dialects at once: {', '.join(used)}"
    findings.error("", "", message, f"write all of it in {used[0]}, or all of it in {used[1]}")
    return Reading(used[0], None, tuple(findings.found))


def _warn_of_foreign(pod: PodText) -> Findings:
    """Warn of device resources that nobody here hands out: the pod is planned as if it did not ask for them."""
    findings = Findings()
    for container in pod.containers:
        for name, text in container.resources().items():
            if foreign_resource(name):
                message = "asks for a device that Tessera does not hand out; planned without it"
                findings.warn(container.field(name), text, message, "leave it to that device's own plugin")
    return findings
