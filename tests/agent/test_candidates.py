"""A ticket means exactly one container, or nobody is served."""

import pytest

from agent.world import a_grant, a_kube_pod, an_allocation
from tessera.agent.candidates import Candidate, Nobody, Refusal, Stage, choose
from tessera.core.ticket import TICKETS, Ticket

RUNNING = {"name": "main", "containerID": "containerd://1", "state": {"running": {}}}
CRASHED = {"name": "main", "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}


def nobody_answered(uid, container):
    return False


def everybody_answered(uid, container):
    return True


@pytest.mark.parametrize("number", [0, 31, 32, 127, 128, 511])
def test_every_number_of_the_range_finds_its_container(number):
    """TensorFusion's 128th number belongs to no plugin: one pod in 128 never starts there."""
    pod = a_kube_pod("p", {"main": number})
    choice = choose([pod], Ticket(number), "n1", nobody_answered)
    assert isinstance(choice, Candidate)
    assert (choice.pod.metadata.uid, choice.container, choice.stage) == ("uid-p", "main", Stage.NEW)
    assert choice.grants == (a_grant(),)


def test_tickets_are_the_containers_own():
    grants = {"a": (a_grant("GPU-1"),), "b": (a_grant("GPU-2"),)}
    pod = a_kube_pod("p", {"a": 5, "b": 6}, grants=grants, init=("a",))
    found = {number: choose([pod], Ticket(number), "n1", nobody_answered) for number in (5, 6)}
    assert [c.grants[0].uuid for c in found.values() if isinstance(c, Candidate)] == ["GPU-1", "GPU-2"]


def test_who_waits_for_the_first_answer_goes_before_who_runs():
    pods = [a_kube_pod("old", statuses=[RUNNING]), a_kube_pod("new")]
    choice = choose(pods, Ticket(37), "n1", lambda uid, _: uid == "uid-old")
    assert isinstance(choice, Candidate)
    assert choice.pod.metadata.name == "new"


def test_who_waits_and_was_answered_goes_before_who_ran():
    pods = [a_kube_pod("ran", statuses=[CRASHED]), a_kube_pod("waits")]
    choice = choose(pods, Ticket(37), "n1", everybody_answered)
    assert isinstance(choice, Candidate)
    assert (choice.pod.metadata.name, choice.stage) == ("waits", Stage.ANSWERED)


@pytest.mark.parametrize("status", [RUNNING, CRASHED])
def test_a_container_that_has_its_share_is_found_again_when_nobody_else_asks(status):
    choice = choose([a_kube_pod("p", statuses=[status])], Ticket(37), "n1", everybody_answered)
    assert isinstance(choice, Candidate)
    assert choice.stage is Stage.STARTED


def test_two_that_wait_with_one_ticket_are_both_refused_by_name():
    choice = choose([a_kube_pod("a"), a_kube_pod("b")], Ticket(37), "n1", nobody_answered)
    assert isinstance(choice, Refusal)
    assert "container main of pod team/a and container main of pod team/b" in choice.message
    assert "delete one" in choice.message


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_finished_pods_do_not_ask(phase):
    assert choose([a_kube_pod("p", phase=phase)], Ticket(37), "n1", nobody_answered) == Nobody(Ticket(37))


def test_pods_of_other_nodes_do_not_ask():
    pods = [a_kube_pod("p", node="n2")]
    assert choose(pods, Ticket(37), "n1", nobody_answered) == Nobody(Ticket(37))


def test_another_quantity_or_key_is_another_ticket():
    pods = [a_kube_pod("p", {"main": 37})]
    others = [choose(pods, Ticket(n), "n1", nobody_answered) for n in range(TICKETS) if n != 37]
    assert {type(choice) for choice in others} == {Nobody}


WRONG = {
    "no allocation at all": ("", "carries no allocation"),
    "another pod's": (an_allocation("uid-x", {"main": (a_grant(),)}, {"main": 37}), "with uid uid-x"),
    "another node's": (an_allocation("uid-p", {"main": (a_grant(),)}, {"main": 37}, node="n9"), "node n9"),
    "not for this container": (an_allocation("uid-p", {"b": (a_grant(),)}, {"b": 37}), "no ticket and 0 devices"),
    "another ticket": (an_allocation("uid-p", {"main": (a_grant(),)}, {"main": 38}), "ticket 38"),
    "not JSON": ("gold", "is no allocation"),
    "of a later version": ('{"v":9,"pod":"uid-p","node":"n1","containers":{},"charges":[]}', "version 9"),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_allocation_that_cannot_be_believed_is_refused_with_pod_and_reason(name):
    text, why = WRONG[name]
    choice = choose([a_kube_pod("p", annotation=text)], Ticket(37), "n1", nobody_answered)
    assert isinstance(choice, Refusal)
    assert "container main of pod team/p" in choice.message
    assert why in choice.message
