"""Small clusters and traces for the simulator's tests, of a size that can be worked out by hand."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from builders import a_device, a_node
from tessera.core.device import Node
from tessera.core.fleet import Fleet
from tessera.core.request import Claim, Constraints, Container, ModelRule, Pod, Request
from tessera.core.share import ComputeMilli, MemoryFraction, ShareSpec
from tessera.core.units import Milli
from tessera.policy.outlook import outlook_of
from tessera.simulator.engine import Engine, Parts, Rules
from tessera.simulator.failures import Failure
from tessera.simulator.stream import Stream
from tessera.simulator.trace import Trace, trace_of


def node(name: str, devices: int = 1, model: str = "A100", **facts: Any) -> Node:
    """A node of 16,000 milli-cores and 64 GiB, with devices of 24,576 MiB."""
    made = [a_device(f"{name}-{i}", index=i, model=model) for i in range(devices)]
    return a_node(name, made, **{"cpu_milli": 16_000, "memory_mib": 65_536, **facts})


def pod(milli: int = 0, count: int = 1, cpu: int = 1000, models: str = "", name: str = "p") -> Pod:
    """A pod that takes so many milli of ``count`` devices (0: none); ``models`` are joined by ``|``."""
    share = ShareSpec(
        MemoryFraction(Milli(milli)),
        MemoryFraction(Milli(milli)),
        ComputeMilli(Milli(milli)),
        ComputeMilli(Milli(milli)),
    )
    rules = tuple(ModelRule(model, exact=True) for model in models.split("|") if model)
    request = Request((Claim(("main",), count, share),), Constraints(models_allowed=rules)) if milli else None
    return Pod("t", name, name, (Container("main"),), request, cpu_milli=cpu, memory_mib=1024)


def a_trace(nodes: Sequence[Node], *pods: Pod, lifetimes: Sequence[int | None] = ()) -> Trace:
    """The trace of these pods, named ``p0``, ``p1`` and so on."""
    return trace_of([one_named(one, f"p{i}") for i, one in enumerate(pods)], nodes, lifetimes)


def one_named(like: Pod, name: str) -> Pod:
    """The pod under a name."""
    return Pod(like.namespace, name, name, like.containers, like.request, None, like.cpu_milli, like.memory_mib)


def run(
    nodes: Sequence[Node],
    *pods: Pod,
    rules: Rules | None = None,
    stays: Sequence[float] | None = None,
    failures: Sequence[Failure] = (),
) -> Engine:
    """The pods once, in order, one a second where ``stays`` says how long each is there."""
    trace = a_trace(nodes, *pods)
    times = None if stays is None else np.arange(len(pods), dtype=np.float64)
    stream = Stream(
        np.arange(len(pods), dtype=np.int64),
        None,
        times,
        None if stays is None else np.array(stays, dtype=np.float64),
    )
    fleet = Fleet(nodes)
    engine = Engine(Parts(fleet, trace, stream, outlook_of(fleet), failures=failures), rules or Rules("binpack"))
    engine.run()
    return engine
