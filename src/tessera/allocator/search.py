"""Exact search on one node: give every claim of a pod its devices, or know that no way exists.

A pod with several claims is a small packing problem: an init container may use the device that an app
container uses later, two app containers may not overfill one together. The search walks claims depth first
and devices in the policy's order; devices that are alike in everything that matters count as one, which keeps
it small (a node of 8 equal devices has one first choice, not 8). It is complete up to ``EXPANSIONS`` steps.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

EXPANSIONS: Final = 50_000


class SearchLimit(Exception):
    """The node's packing problem was given up after ``EXPANSIONS`` steps."""


@dataclass(frozen=True, slots=True)
class LocalDevice:
    """What is left of one device for this pod: free amounts, and whether anybody else is on it."""

    memory: int
    compute: int
    slots: int
    numa: int
    idle: bool


@dataclass(frozen=True, slots=True)
class LocalClaim:
    """One claim on this node: per device what it takes (``None``: not this device), and when it is alive."""

    count: int
    needs: tuple[tuple[int, int] | None, ...]
    phases: tuple[int, ...]
    exclusive: bool
    group: int | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules across devices and claims: see :class:`tessera.core.request.Constraints`."""

    one_numa: bool = False
    distinct: bool = False


class _State:
    """Use per phase and device while the search walks; undone on the way back."""

    def __init__(self, devices: Sequence[LocalDevice], phase_count: int) -> None:
        self.devices = devices
        self.memory = [[0] * len(devices) for _ in range(phase_count)]
        self.compute = [[0] * len(devices) for _ in range(phase_count)]
        self.users = [[0] * len(devices) for _ in range(phase_count)]
        self.exclusive = [[0] * len(devices) for _ in range(phase_count)]
        self.touched = [0] * len(devices)

    def admits(self, claim: LocalClaim, j: int) -> bool:
        need, device = claim.needs[j], self.devices[j]
        if need is None or (claim.exclusive and not device.idle):
            return False
        return all(
            self.memory[p][j] + need[0] <= device.memory
            and self.compute[p][j] + need[1] <= device.compute
            and self.users[p][j] < device.slots
            and not self.exclusive[p][j]
            and not (claim.exclusive and self.users[p][j])
            for p in claim.phases
        )

    def put(self, claim: LocalClaim, chosen: Sequence[int], sign: int) -> None:
        for j in chosen:
            need = claim.needs[j]
            assert need is not None, "admits() refuses devices without a need"
            self.touched[j] += sign
            for p in claim.phases:
                self.memory[p][j] += sign * need[0]
                self.compute[p][j] += sign * need[1]
                self.users[p][j] += sign
                self.exclusive[p][j] += sign * int(claim.exclusive)

    def likeness(self, claims: Sequence[LocalClaim], j: int) -> tuple[object, ...]:
        """Equal for devices between which no later choice can tell a difference."""
        used = tuple(
            (self.memory[p][j], self.compute[p][j], self.users[p][j], self.exclusive[p][j])
            for p in range(len(self.memory))
        )
        return (self.devices[j], self.touched[j] > 0, used, tuple(claim.needs[j] for claim in claims))


def _candidates(state: _State, claim: LocalClaim, order: Sequence[int], rules: Rules) -> list[list[int]]:
    """The devices that admit the claim now, in order; one list per NUMA node where they must share one."""
    open_ = [j for j in order if state.admits(claim, j) and not (rules.distinct and state.touched[j])]
    if not rules.one_numa or claim.count == 1:
        return [open_]
    groups: dict[int, list[int]] = {}
    for j in open_:
        if state.devices[j].numa >= 0:
            groups.setdefault(state.devices[j].numa, []).append(j)
    return list(groups.values())


def _agreed(claims: Sequence[LocalClaim], chosen: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    """The devices that an earlier claim of the next claim's group took; ``None`` where it is free to choose."""
    group = claims[len(chosen)].group
    if group is None:
        return None
    return next((taken for claim, taken in zip(claims, chosen, strict=False) if claim.group == group), None)


def _choices(
    state: _State,
    claims: Sequence[LocalClaim],
    chosen: Sequence[tuple[int, ...]],
    order: Sequence[int],
    rules: Rules,
) -> Iterator[tuple[int, ...]]:
    """Sets of devices for the next claim, the preferred first, one of each kind of alike sets."""
    claim, taken = claims[len(chosen)], _agreed(claims, chosen)
    if taken is not None:
        if claim.count == len(taken) and not rules.distinct and all(state.admits(claim, j) for j in taken):
            yield taken
        return
    kinds: dict[tuple[object, ...], int] = {}
    kind_of = {j: kinds.setdefault(state.likeness(claims, j), len(kinds)) for j in order}
    seen: set[tuple[int, ...]] = set()
    for group in _candidates(state, claim, order, rules):
        for choice in combinations(group, claim.count):
            kind = tuple(sorted(kind_of[j] for j in choice))
            if kind not in seen:
                seen.add(kind)
                yield choice


def search(
    devices: Sequence[LocalDevice],
    claims: Sequence[LocalClaim],
    phase_count: int,
    order: Sequence[int],
    rules: Rules,
) -> tuple[tuple[int, ...], ...] | None:
    """Device positions for every claim, or ``None`` where no legal way exists.

    ``order`` is the policy's order of the devices. Raises :class:`SearchLimit` when the problem is too large.
    """
    state = _State(devices, phase_count)
    chosen: list[tuple[int, ...]] = []
    steps = 0

    def settle() -> bool:
        nonlocal steps
        if len(chosen) == len(claims):
            return True
        claim = claims[len(chosen)]
        for choice in _choices(state, claims, chosen, order, rules):
            steps += 1
            if steps > EXPANSIONS:
                raise SearchLimit
            state.put(claim, choice, 1)
            chosen.append(choice)
            if settle():
                return True
            chosen.pop()
            state.put(claim, choice, -1)
        return False

    return tuple(chosen) if settle() else None
