"""The compiled looker is the one with arrays, bit for bit, on fleets and workloads drawn at random."""

import random
from dataclasses import replace

import numpy as np
import pytest

from builders import a_claim, a_device, a_node, a_pod, a_share, whole
from tessera.allocator.index import Index
from tessera.allocator.ledger import Adopt, Ledger, Release
from tessera.allocator.look import Known, known_of, look
from tessera.allocator.look import order as order_by_arrays
from tessera.allocator.place import blank
from tessera.core.device import Node
from tessera.core.fleet import Fleet
from tessera.core.request import Constraints, ModelRule, Pod, Request
from tessera.policy.keeping import NOT_KEPT
from tessera.policy.outlook import Outlook, outlook_of
from tessera.policy.prices import FINE
from tessera.policy.rank import POLICIES, Policy, Ranking
from tessera.policy.score import Scene
from tessera.policy.target import Kind
from tessera.runtime.kernel import compiled_looker

pytestmark = pytest.mark.usefixtures("native")  # builds it where it is missing

MODELS = ("A100", "T4", "H100")
ALLOWED = ((), (), ("T4",), ("A100", "H100"))
SIZES = (10, 120, 190, 250, 333, 470, 500, 810, 1000)


def a_drawn_node(draw: random.Random, name: str) -> Node:
    model, count = draw.choice(MODELS), draw.choice((0, 1, 2, 4, 8, 11))
    memory, sick = draw.choice((15109, 24576, 81920)), draw.random() < 0.1
    devices = [
        a_device(f"{name}-{i}", memory, index=i, model=model, slots=draw.choice((2, 5, 100)), healthy=not sick)
        for i in range(count)
    ]
    cpu = None if draw.random() < 0.1 else draw.randrange(130) * 1000
    return a_node(
        name, devices, cpu_milli=cpu, memory_mib=draw.choice((None, 100_000)), max_pods=draw.choice((None, 6))
    )


def a_drawn_pod(draw: random.Random) -> Pod:
    milli = draw.choice(SIZES)
    share = draw.choice((a_share(milli * 15, milli), a_share(milli * 20), a_share(0, milli), whole()))
    count = draw.choice((1, 1, 1, 1, 2, 3, 8))
    models = tuple(ModelRule(m, exact=True) for m in draw.sample(MODELS, draw.choice((1, 2))))
    constraints = Constraints(
        models_allowed=models if draw.random() < 0.3 else (), idle_device=draw.random() < 0.1
    )
    cpu, memory = draw.choice((0, 500, 3152, 8000, 64000)), draw.choice((0, 0, 40_000))
    pod = a_pod(a_claim(share, count), constraints=constraints, cpu_milli=cpu, memory_mib=memory)
    return replace(pod, request=Request(())) if draw.random() < 0.1 else pod


def a_drawn_outlook(draw: random.Random, fleet: Fleet, generation: int) -> Outlook:
    """Also what no workload would lead to: prices and nodes to be kept of every sort."""
    kinds = {
        Kind(
            draw.choice((0, 3152, 12000)),
            draw.choice((0, *SIZES)),
            draw.choice((1, 1, 2, 8)),
            draw.choice(ALLOWED),
        ): draw.randrange(1, 50)
        for _ in range(draw.randrange(1, 12))
    }
    kinds[Kind(4000, 0, 0)] = draw.randrange(20)
    outlook = outlook_of(fleet, kinds, generation)
    full = fleet.per_node(fleet.usable) * 1000
    kept = np.where([draw.random() < 0.3 for _ in fleet.nodes], full, NOT_KEPT)
    price = np.array([draw.randrange(9) * FINE // 8 for _ in fleet.models] or [0])
    return replace(outlook, kept=kept, price=price)


def looked_at(scene: Scene, pod: Pod, policy: Policy) -> tuple[Known, Known]:
    """The same pod by arrays and by the kernel."""
    kernel = compiled_looker()
    assert kernel is not None, "make native builds the kernel"
    one, other = (known_of(scene, blank(scene.snapshot, pod), policy, 0) for _ in range(2))
    nodes = np.arange(len(scene.snapshot.fleet.nodes))
    look(scene, one, nodes)
    assert kernel.look(scene, other, None)
    by_arrays, by_kernel = order_by_arrays(scene, one), kernel.order(scene, other)
    if by_kernel is not None:
        for node in nodes.tolist():
            rows = [row for row in scene.snapshot.fleet.rows(node) if one.fits[row]]
            assert by_kernel(rows) == by_arrays(rows)
    return one, other


@pytest.mark.parametrize("seed", range(12))
def test_the_kernel_scores_and_orders_as_the_arrays_do(seed):
    draw = random.Random(seed)
    fleet = Fleet([a_drawn_node(draw, f"n{i}") for i in range(draw.randrange(1, 90))])
    ledger = Ledger(fleet)
    filling = Index(ledger, POLICIES["spread"])
    for serial in range(draw.randrange(120)):
        placed = filling.place(replace(a_drawn_pod(draw), uid=f"u{serial}"))
        if placed is not None:
            ledger.apply(Adopt(placed.placement))
    for generation in range(4):
        scene = Scene(ledger.view(), a_drawn_outlook(draw, fleet, generation))
        for ranking in Ranking:
            one, other = looked_at(scene, a_drawn_pod(draw), Policy(ranking, ranking))
            assert one.scores.tolist() == other.scores.tolist()
            assert one.fits.tolist() == other.fits.tolist()


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_an_index_decides_alike_with_the_kernel_and_without(policy):
    draw = random.Random(policy)
    fleet = Fleet([a_drawn_node(draw, f"n{i}") for i in range(12)])
    ledger, held = Ledger(fleet), list[str]()
    indices = [Index(ledger, POLICIES[policy], looker=looker) for looker in (None, compiled_looker())]
    pods = [a_drawn_pod(draw) for _ in range(6)]
    for serial in range(60):
        if serial % 20 == 19:
            outlook = a_drawn_outlook(draw, fleet, serial)
            for index in indices:
                index.outlook = outlook
        pod = replace(draw.choice(pods), uid=f"u{serial}")
        one, other = (index.place(pod) for index in indices)
        assert one == other
        if one is not None:
            ledger.apply(Adopt(one.placement))
            held.append(pod.uid)
        if held and draw.random() < 0.3:
            ledger.apply(Release(held.pop(draw.randrange(len(held)))))


def test_what_is_beyond_the_kernel_is_left_to_the_arrays():
    kernel = compiled_looker()
    assert kernel is not None
    large = Fleet([a_node("n", 129)])
    scene, pwr = Scene(Ledger(large).view(), outlook_of(large)), POLICIES["pwr+"]
    assert not kernel.look(scene, known_of(scene, blank(scene.snapshot, a_pod(a_claim(whole()))), pwr, 0), None)
    small = Fleet([a_node("n", 2)])
    scene = Scene(Ledger(small).view(), outlook_of(small))
    two = a_pod(a_claim(whole(), containers="a"), a_claim(whole(), containers="b"))
    assert not kernel.look(scene, known_of(scene, blank(scene.snapshot, two), pwr, 0), None)
