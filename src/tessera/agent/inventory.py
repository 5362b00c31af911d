"""What the node publishes: its devices with their health, as found now, as one value that can be compared."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tessera.core.device import Device
from tessera.wire.kube.inventory import DeviceFacts, GPUNodeStatus, GPUStatus, facts_of


@dataclass(frozen=True, slots=True)
class Tier:
    """How memory is limited on this node: ``isolation`` as published, whether containers pass the gate.

    ``driver``: by the driver or the kernel, and by the limiter; ``hook``: by the limiter; ``unverified``: the same
    without a gate; ``report``: not at all, so that nothing is handed out.

    ``problem`` is why it is not better than that, ``remedy`` what a person does about it.
    """

    isolation: str
    gate: bool
    problem: str = ""
    remedy: str = ""

    @property
    def told(self) -> str:
        """Problem and remedy as one text; empty where there is none."""
        return "; ".join(part for part in (self.problem, self.remedy) if part)


HOOK = Tier("hook", gate=True)
DRIVER = Tier("driver", gate=True)


def vanished(known: Iterable[Device], found: Iterable[Device], why: str) -> dict[str, tuple[Device, str]]:
    """Devices that were there and cannot be read now, by uuid: they stay published, and are not healthy.

    A device comes out of this list only by being read again, or by an agent that starts without it.
    """
    there = {device.uuid for device in found}
    reason = why or "the driver does not list it any more"
    return {d.uuid: (replace(d, healthy=False), reason) for d in known if d.uuid not in there}


def node_status(  # noqa: PLR0913 - what a status consists of
    devices: Iterable[Device],
    unfit: Mapping[str, str],
    foreign: Mapping[str, str],
    tier: Tier,
    *,
    driver: str,
    agent: str,
    message: str = "",
) -> GPUNodeStatus:
    """The node's status; devices by index, so that equal facts are equal values."""
    facts = sorted((_facts(d, unfit.get(d.uuid, ""), foreign.get(d.uuid, "")) for d in devices), key=_order)
    return GPUNodeStatus(
        devices=tuple(facts),
        isolation=tier.isolation,
        gate=tier.gate,
        driver=driver,
        agent=agent,
        message="; ".join(part for part in (tier.told, message) if part),
    )


def _order(facts: DeviceFacts) -> tuple[int, str]:
    return facts.index, facts.uuid


def _facts(device: Device, why: str, holder: str) -> DeviceFacts:
    fit = replace(device, healthy=device.healthy and not why)
    facts = facts_of(fit, why)
    return DeviceFacts(**{name: getattr(facts, name) for name in facts.__struct_fields__} | {"foreign": holder})


def gpu_name(uuid: str) -> str:
    """The name of a device's ``GPU`` object."""
    return uuid.lower()


def gpu_statuses(node: str, status: GPUNodeStatus) -> dict[str, GPUStatus]:
    """The ``GPU`` objects of a node, by name."""
    return {gpu_name(facts.uuid): GPUStatus(node=node, device=facts) for facts in status.devices}
