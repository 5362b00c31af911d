"""Leases and access on the real engine: a kube-scheduler's own lease, and the API server's own answers."""

import asyncio

from cluster.engine.plane import ControlPlane
from cluster.engine.service import wait_until
from tessera.runtime.kube.access import Access, Denied, Granted
from tessera.runtime.kube.client import ApiClient
from tessera.runtime.kube.config import read_kubeconfig
from tessera.runtime.kube.election import LeaseWatch

ELECTION = {
    "leaderElection": {
        "leaderElect": True,
        "leaseDuration": "8s",
        "renewDeadline": "6s",
        "retryPeriod": "500ms",
        "resourceLock": "leases",
        "resourceName": "tessera-test",
        "resourceNamespace": "kube-system",
    }
}


async def until_held(watch: LeaseWatch, prefix: str, seconds: float = 30.0) -> None:
    """Poll until the watch says so."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not watch.holds(prefix):
        assert asyncio.get_running_loop().time() < deadline, watch.obstacle(prefix)
        await asyncio.sleep(0.05)


def test_the_lease_of_a_kube_scheduler_is_followed_from_host_to_host(fresh_control_plane: ControlPlane) -> None:
    plane = fresh_control_plane
    first = plane.start_scheduler("first", config=ELECTION, hostname="host-1", kubeconfig=plane.kubeconfig)
    lease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/tessera-test"

    def holder() -> str:
        answer = plane.api.call("GET", lease, accepts=(404,))
        return str(answer.get("spec", {}).get("holderIdentity", ""))

    wait_until(lambda: holder().startswith("host-1_"), "the first scheduler leads", 30)
    plane.start_scheduler("second", config=ELECTION, hostname="host-10", kubeconfig=plane.kubeconfig)

    async def scene() -> None:
        client = ApiClient(read_kubeconfig([plane.kubeconfig]))
        watch = LeaseWatch(client, "kube-system/tessera-test", period=0.2)
        running = asyncio.ensure_future(watch.run())
        await until_held(watch, "host-1")
        assert not watch.holds("host-10")
        one = watch.term
        first.kill()
        await until_held(watch, "host-10")
        assert not watch.holds("host-1")
        assert watch.term != one
        running.cancel()
        await client.close()

    asyncio.run(scene())


def test_debug_access_is_what_a_cluster_role_grants(control_plane: ControlPlane, namespace: str) -> None:
    plane = control_plane
    for name in ("reader", "stranger"):
        plane.api.post(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": name}})
    rules = [{"nonResourceURLs": ["/debug/*"], "verbs": ["get"]}]
    road = "/apis/rbac.authorization.k8s.io/v1"
    plane.api.post(f"{road}/clusterroles", {"metadata": {"name": f"debug-{namespace}"}, "rules": rules})
    binding = {
        "metadata": {"name": f"debug-{namespace}"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": f"debug-{namespace}"},
        "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": namespace}],
    }
    plane.api.post(f"{road}/clusterrolebindings", binding)
    tokens = {name: plane.token_for(namespace, name) for name in ("reader", "stranger")}

    async def scene() -> None:
        client = ApiClient(read_kubeconfig([plane.kubeconfig]))
        access = Access(client)
        user = f"system:serviceaccount:{namespace}:reader"
        verdict = await access.judge(f"Bearer {tokens['reader']}", "get", "/debug/ledger")
        deadline = asyncio.get_running_loop().time() + 20
        while verdict != Granted(user) and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.2)  # the authorizer learns of a new binding by watching
            verdict = await Access(client).judge(f"Bearer {tokens['reader']}", "get", "/debug/ledger")
        assert verdict == Granted(user)
        for token, verb, path, status in (
            (tokens["reader"], "post", "/debug/ledger", 403),
            (tokens["reader"], "get", "/metrics-of-others", 403),
            (tokens["stranger"], "get", "/debug/ledger", 403),
            ("made-up", "get", "/debug/ledger", 401),
        ):
            verdict = await access.judge(f"Bearer {token}", verb, path)
            assert isinstance(verdict, Denied)
            assert verdict.status == status
        await client.close()

    asyncio.run(scene())
    for kind in ("clusterrolebindings", "clusterroles"):
        plane.api.delete(f"{road}/{kind}/debug-{namespace}")
