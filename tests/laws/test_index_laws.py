"""Laws of the index: whatever happened in between, it answers as a decision from nothing does."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laws.test_allocator_laws import MANY, drawn, every_policy
from laws.worlds import crowded, layered_pods, nodes, plain_pods, pods, ruled_pods
from tessera.allocator import index as index_module
from tessera.allocator.index import Index
from tessera.allocator.ledger import Ledger, Release, Reserve
from tessera.allocator.place import place
from tessera.core.device import Node
from tessera.core.fleet import Fleet
from tessera.core.placement import Placed
from tessera.core.request import Pod
from tessera.policy.rank import POLICIES

many_nodes = st.one_of(
    nodes(most_nodes=6),
    st.lists(crowded(), min_size=2, max_size=12).map(
        lambda worlds: [
            Node(
                f"n{i}",
                tuple(replace(d, uuid=f"{i}-{d.uuid}") for d in world[0].devices),
                max_pods=world[0].max_pods,
            )
            for i, world in enumerate(worlds)
        ]
    ),
)
some_pods = st.one_of(pods(), plain_pods(), layered_pods(), ruled_pods())


def placed_from_nothing(
    world: list[Node], ledger: Ledger, pod: Pod, allowed: set[str], policy: str
) -> Placed | None:
    """The same question asked of a fresh ledger, in which every other node is cordoned."""
    fleet = Fleet([node if node.name in allowed else replace(node, cordoned=True) for node in world])
    fresh = Ledger.rebuilt(fleet, [entry.placement for entry in ledger.entries.values()])
    return place(fresh.snapshot(), pod, POLICIES[policy])


@every_policy
@MANY
@given(data=st.data())
def test_the_index_answers_as_a_decision_from_nothing(policy, data):
    world = data.draw(many_nodes)
    policy = drawn(policy, data)
    templates = data.draw(st.lists(some_pods, min_size=1, max_size=3))
    ledger = Ledger(Fleet(world))
    index = Index(ledger, POLICIES[policy])
    names = [node.name for node in world]
    for step in range(data.draw(st.integers(1, 10))):
        if ledger.entries and data.draw(st.integers(0, 3)) == 0:
            ledger.apply(Release(data.draw(st.sampled_from(sorted(ledger.entries)))))
        pod = replace(data.draw(st.sampled_from(templates)), uid=f"u{step}")
        given_names = data.draw(st.none() | st.lists(st.sampled_from([*names, "elsewhere"]), unique=True))
        barred = data.draw(st.sets(st.sampled_from(names), max_size=1))
        allowed = set(names if given_names is None else given_names) - barred
        answer = index.place(pod, given_names, barred=barred)
        assert answer == placed_from_nothing(world, ledger, pod, allowed, policy)
        if answer is not None:
            ledger.apply(Reserve(answer.placement))


@MANY
@given(data=st.data())
def test_forgetting_changes_no_answer(data):
    """The bounds of what is remembered, down to one kind of pod and no change at all, are only about cost."""
    world = data.draw(many_nodes)
    templates = data.draw(st.lists(some_pods, min_size=2, max_size=4))
    steps = data.draw(st.lists(st.sampled_from(range(len(templates))), min_size=2, max_size=8))
    answers = []
    for kinds, objects in ((64, 4096), (1, 1)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(index_module, "MOST_KINDS", kinds)
            patch.setattr(index_module, "REMEMBERED_OBJECTS", objects)
            ledger = Ledger(Fleet(world))
            index = Index(ledger, POLICIES["binpack"])
            found = []
            for step, which in enumerate(steps):
                answer = index.place(replace(templates[which], uid=f"u{step}"))
                found.append(answer)
                if answer is not None:
                    ledger.apply(Reserve(answer.placement))
            answers.append(found)
    assert answers[0] == answers[1]
