import time
from cluster.engine.nodes import add_nodes, some_nodes, remove_nodes, SimulatedNode
from cluster.scheduling import *


def test_smoke(control_plane, namespace):
    add_nodes(control_plane, some_nodes(2, "smoke", devices=2))
    n = SimulatedNode("plain", devices=2)
    body = n.node()
    control_plane.api.post("/api/v1/nodes", body)
    control_plane.api.merge("/api/v1/nodes/plain", {"spec": {"taints": None}})
    pair = start_pair(control_plane)
    for i in range(20):
        create(control_plane, admitted_pod(f"p{i}", quarter(), namespace=namespace))
    books = await_bound(control_plane, namespace, 16, 20)
    time.sleep(6)
    books = books_of(control_plane, namespace)
    assert len(books.bound) == 16
    print(control_plane.kubectl("describe", "pod", "-n", namespace, sorted(books.waiting)[0]))
    # wake: a GPUNode appears
    import msgspec
    from tessera.wire.kube.inventory import GPUNodeStatus

    control_plane.api.post(
        "/apis/tessera.dev/v1alpha1/gpunodes",
        {"apiVersion": "tessera.dev/v1alpha1", "kind": "GPUNode", "metadata": {"name": "plain"}},
    )
    control_plane.api.merge(
        "/apis/tessera.dev/v1alpha1/gpunodes/plain/status",
        {"status": msgspec.to_builtins(GPUNodeStatus(devices=n.inventory))},
    )
    t = time.time()
    await_bound(control_plane, namespace, 20, 30)
    print("woken in", time.time() - t)
    print(control_plane.api.get("/apis/storage.k8s.io/v1/csistoragecapacities"))
    print(open(control_plane.logs / "tessera-extender.log").read()[-1500:])
    assert 0
