"""Place a pod on one node without arrays: for a single machine, where starting numpy costs more than deciding.

The same rules, the same exact search and the same preferences as :func:`tessera.allocator.place.place` on a fleet
of that one node; a law holds the two together, answer for answer. Reasons for a refusal are given by
:mod:`tessera.allocator.explain` alone.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tessera.allocator.grants import group_of, placement_of
from tessera.allocator.rules import constraints_of, passes
from tessera.allocator.search import LocalClaim, LocalDevice, Rules, SearchLimit, search
from tessera.core.device import Device, Node
from tessera.core.placement import Placement
from tessera.core.request import Claim, Constraints, Pod, Request, phases
from tessera.core.share import resolve
from tessera.policy.rank import Level, Policy, order


@dataclass(slots=True)
class _Tally:
    """What is used of one device."""

    memory: int = 0
    compute: int = 0
    slots: int = 0
    exclusive: bool = False


class OneNode:
    """A node and what is placed on it."""

    def __init__(self, node: Node, placed: Iterable[Placement]) -> None:
        self.node = node
        self._placed = [placement for placement in placed if placement.node == node.name]
        self._used = {device.uuid: _Tally() for device in node.devices}
        for charge in (charge for placement in self._placed for charge in placement.charges):
            tally = self._used.get(charge.uuid, _Tally())
            tally.memory += charge.memory_mib
            tally.compute += charge.compute_milli
            tally.slots += charge.slots
            tally.exclusive |= charge.exclusive

    def place(self, pod: Pod, policy: Policy) -> Placement | None:
        """The placement that the policy likes best, or ``None``. Raises ``ValueError`` as ``place`` does."""
        request = _request_of(pod)
        devices = self.node.devices
        ranking = policy.preferring(request.preference).device
        preferred = order([self._level(device) for device in devices], ranking)
        life = phases(pod.containers)
        claims = [self._local_claim(claim, request.constraints, life) for claim in request.claims]
        short = any(sum(n is not None for n in local.needs) < local.count for local in claims)
        if short or not self._is_open(pod):
            return None
        rules = Rules(request.constraints.one_numa, request.constraints.distinct_devices)
        try:
            chosen = search([self._local_device(d) for d in devices], claims, len(life), preferred, rules)
        except SearchLimit:
            return None
        if chosen is None:
            return None
        return placement_of(pod, self.node.name, request.claims, [[devices[j] for j in js] for js in chosen])

    def fitting(self, pod: Pod) -> tuple[Device, ...]:
        """The devices that could host the pod's first claim, as if it came alone."""
        request = _request_of(pod)
        local = self._local_claim(request.claims[0], request.constraints, phases(pod.containers))
        return tuple(d for d, need in zip(self.node.devices, local.needs, strict=True) if need is not None)

    def _level(self, device: Device) -> Level:
        tally = self._used[device.uuid]
        return Level(tally.memory, device.memory_mib, tally.compute, device.compute_milli, device.index)

    def _local_device(self, device: Device) -> LocalDevice:
        tally = self._used[device.uuid]
        return LocalDevice(
            memory=device.memory_mib - tally.memory,
            compute=device.compute_milli - tally.compute,
            slots=device.slots - tally.slots,
            numa=-1 if device.numa is None else device.numa,
            idle=tally.slots == 0,
        )

    def _local_claim(self, claim: Claim, constraints: Constraints, life: Sequence[frozenset[str]]) -> LocalClaim:
        rules = constraints_of(claim, constraints)
        return LocalClaim(
            count=claim.count,
            needs=tuple(self._need(device, claim, rules) for device in self.node.devices),
            phases=tuple(p for p, alive in enumerate(life) if not alive.isdisjoint(claim.containers)),
            exclusive=claim.share.exclusive,
            group=group_of(claim, constraints.same_device),
        )

    def _need(self, device: Device, claim: Claim, rules: Constraints) -> tuple[int, int] | None:
        """MiB and milli that the claim takes of the device, or ``None`` where one share of it does not fit."""
        share = resolve(claim.share, device.memory_mib, device.milli_tflops)
        tally = self._used[device.uuid]
        if share is None or not passes(device, rules) or tally.exclusive:
            return None
        wants_idle = claim.share.exclusive or rules.idle_device
        exhausted = share.compute_request == 0 and tally.compute >= device.compute_milli
        full = (
            tally.slots >= device.slots
            or tally.memory + share.memory_request > device.memory_mib
            or tally.compute + share.compute_request > device.compute_milli
        )
        unfit = (wants_idle and tally.slots > 0) or exhausted or full
        return None if unfit else (share.memory_request, share.compute_request)

    def _is_open(self, pod: Pod) -> bool:
        """Whether the node takes the pod as far as everything but devices goes."""
        node = self.node
        cpu = sum(p.cpu_milli for p in self._placed) + pod.cpu_milli
        memory = sum(p.memory_mib for p in self._placed) + pod.memory_mib
        return (
            not node.cordoned
            and pod.node_name in (None, node.name)
            and all(node.label(key) == value for key, value in pod.node_selector)
            and (node.max_pods is None or len(self._placed) + 1 <= node.max_pods)
            and (node.cpu_milli is None or not pod.cpu_milli or cpu <= node.cpu_milli)
            and (node.memory_mib is None or not pod.memory_mib or memory <= node.memory_mib)
        )


def _request_of(pod: Pod) -> Request:
    if pod.request is None:
        raise ValueError(f"pod {pod.key} asks for no accelerator")
    return pod.request
