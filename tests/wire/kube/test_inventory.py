"""Inventory objects: a published device comes back; what somebody else holds is set aside."""

import msgspec

from builders import a_device
from tessera.wire.kube.inventory import DeviceFacts, GPUNodeStatus, device_of, facts_of, node_of


def test_a_published_device_comes_back():
    device = a_device("GPU-a", 81920, index=3, numa=1, slots=10, healthy=False, milli_tflops=312_000)
    assert device_of(facts_of(device)) == device


def test_a_device_that_somebody_else_holds_is_cordoned():
    facts = DeviceFacts(uuid="GPU-a", index=0, model="T4", memory_mib=16384, vendor="NVIDIA", foreign="ns/p")
    assert device_of(facts).cordoned


def test_the_devices_of_a_node_are_in_the_order_of_their_indices():
    status = GPUNodeStatus(devices=tuple(facts_of(a_device(f"g{i}", index=i)) for i in (2, 0, 1)))
    node = node_of("n1", status)
    assert (node.name, [d.uuid for d in node.devices]) == ("n1", ["g0", "g1", "g2"])


def test_unknown_fields_of_a_newer_agent_are_passed_over():
    text = (
        b'{"devices":[{"uuid":"g","index":0,"model":"T4","memoryMib":1,"vendor":"NVIDIA","later":1}],"later":{}}'
    )
    status = msgspec.json.decode(text, type=GPUNodeStatus)
    assert status.devices[0].memory_mib == 1
