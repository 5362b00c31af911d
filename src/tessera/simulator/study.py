"""A study: every policy on every seed, on one cluster and one stream of pods. Values only; files are elsewhere."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tessera.allocator.look import Looker
from tessera.core.device import Node
from tessera.core.fleet import Fleet
from tessera.policy.outlook import outlook_of
from tessera.simulator.engine import Parts, Rules
from tessera.simulator.failures import failures
from tessera.simulator.stream import Stream, as_listed, poisson, recorded, tuned
from tessera.simulator.trace import Trace

DEPARTING: Final = 5.0
"""Demand that arrives with departures where nothing is said, as a multiple of what the cluster has."""


@dataclass(frozen=True)
class Study:
    """What is simulated: nodes and pods in their order, and how pods come. Fields as in ``result.Settings``.

    ``sequence`` has the arrays of a sequence file (then nodes and pods are sorted by name).
    """

    nodes: tuple[Node, ...]
    trace: Trace
    policies: tuple[str, ...]
    seeds: tuple[int, ...]
    sequence: Mapping[str, NDArray[np.integer]] | None = None
    arrivals: float | None = None
    load: float | None = None
    lifetimes: str = "exponential"
    sample: int | None = None
    failures: float | None = None
    drain: int = 0

    @cached_property
    def capacity(self) -> int:
        """Milli of all devices."""
        return sum(device.compute_milli for node in self.nodes for device in node.devices)

    def runs(self) -> Iterator[Rules]:
        """Every run, a policy's seeds one after another."""
        for policy in self.policies:
            for seed in self.seeds:
                yield Rules(policy, seed, self.sample, self.drain)

    def stream(self, seed: int) -> Stream:
        """What arrives under this seed."""
        if self.sequence is not None:
            return recorded(self.sequence, seed)
        if self.load is not None:
            return poisson(
                self.trace, len(self.nodes), capacity=self.capacity, load=self.load, lifetimes=self.lifetimes,
                arrivals=self.arrivals or DEPARTING, seed=seed,
            )  # fmt: skip
        if self.arrivals is not None:
            return tuned(self.trace, len(self.nodes), self.capacity, self.arrivals, seed)
        return as_listed(self.trace)

    def parts(self, seed: int, looker: Looker | None = None) -> Parts:
        """What a run under this seed works with: the target workload is that of the whole trace."""
        stream = self.stream(seed)
        order = range(len(self.nodes)) if stream.nodes is None else stream.nodes.tolist()
        fleet = Fleet([self.nodes[row] for row in order])
        until = float(stream.times[-1]) if stream.times is not None and len(stream.times) else 0.0
        return Parts(
            fleet=fleet,
            trace=self.trace,
            stream=stream,
            outlook=outlook_of(fleet, self.trace.kinds()),
            looker=looker,
            failures=failures(len(self.nodes), self.failures or 0.0, until, seed),
        )

    def by_name(self) -> "Study":
        """The study that a recorded sequence counts in: nodes and pods sorted by name."""
        nodes = tuple(sorted(self.nodes, key=lambda node: node.name))
        return replace(self, nodes=nodes, trace=self.trace.by_name())
