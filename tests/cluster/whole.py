"""All of Tessera on a control plane: webhook, scheduler with its kube-scheduler, and an agent on a real node."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cluster.agent_process import AgentProcess
from cluster.engine.images import busybox_files, glibc_files, make_image
from cluster.engine.node import NodeOptions, RealNode
from cluster.engine.plane import ControlPlane
from cluster.engine.registry import Registry
from cluster.engine.service import wait_until
from cluster.scheduling import Pair, start_pair
from cluster.webhook_objects import PROFILE_KIND
from cluster.webhook_process import Webhook, install
from tessera.runtime.native import SIMULATED

IMAGE = "engine.test/workload:1"


@dataclass(frozen=True, slots=True)
class Whole:
    """Everything that runs."""

    plane: ControlPlane
    node: RealNode
    webhook: Webhook
    scheduler: Pair
    agent: AgentProcess

    def inside(self, namespace: str, pod: str, container: str, *command: str) -> str:
        """What a command prints inside a container."""
        return self.plane.kubectl("exec", "-n", namespace, pod, "-c", container, "--", *command, check=False)

    def tails(self, lines: int = 15) -> str:
        """The end of every program's log."""
        return f"{self.plane.tails(lines)}\n{self.node.tails(lines)}"


def workload_image(folder: Path) -> Path:
    """What the manifests of others find when they start: a dynamic shell, sleep, the tenant, and stand-ins for the
    two programs that they call, which show their devices and go on.
    """
    programs = (SIMULATED / "tenant", Path("/bin/bash"), Path("/usr/bin/sleep"), Path("/usr/bin/env"))
    stand_in = folder / "stand-in"
    stand_in.write_text("#!/bin/bash\n/usr/bin/tenant show\nexec /usr/bin/sleep 3600\n")
    stand_in.chmod(0o755)
    dynamic = {f"/bin/{name}": Path("/bin/bash").resolve() for name in ("bash", "sh")}
    files = {
        **busybox_files(),
        **glibc_files(*programs),
        **dynamic,
        "/bin/sleep": Path("/usr/bin/sleep"),
        "/usr/bin/vllm": stand_in,
        "/cuda-samples/vectorAdd": stand_in,
    }
    return make_image(folder, IMAGE, files)


def install_profiles(plane: ControlPlane) -> None:
    """Let the plane serve TensorFusion's WorkloadProfile, and make the profile that one of its manifests names."""
    plane.api.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", PROFILE_KIND)
    plane.new_namespace("tensor-fusion")
    path = "/apis/tensor-fusion.ai/v1/namespaces/tensor-fusion/workloadprofiles"
    wait_until(lambda: plane.api.answers(path), "the kind is served", 30)
    profile = {
        "apiVersion": "tensor-fusion.ai/v1",
        "kind": "WorkloadProfile",
        "metadata": {"name": "defalut-workloadprofile"},
        "spec": {"isLocalGPU": True},
    }
    plane.api.post(path, profile)


@contextmanager
def whole_tessera(plane: ControlPlane, folder: Path, *, simulate: str = "4xA100-SXM4-80GB") -> Iterator[Whole]:
    """Start everything on a control plane that has our kinds, and stop what is not the plane's afterwards."""
    with Registry(workload_image(folder)) as registry, RealNode(plane, NodeOptions(registry=registry.url)) as node:
        webhook = Webhook(plane, folder)
        install(plane, webhook.url, policy=True)
        webhook.start()
        scheduler = start_pair(plane)
        agent = AgentProcess(plane, node, folder / "agent", "--simulate", simulate).start()
        agent.await_tickets()
        yield Whole(plane, node, webhook, scheduler, agent)


def wait_running(plane: ControlPlane, namespace: str, selector: str = "", seconds: float = 60) -> list[dict]:
    """Every pod of the namespace, once all of them run."""
    path = f"/api/v1/namespaces/{namespace}/pods" + (f"?labelSelector={selector}" if selector else "")

    def all_run() -> bool:
        pods = plane.api.get(path)["items"]
        return bool(pods) and all(pod["status"].get("phase") == "Running" for pod in pods)

    try:
        wait_until(all_run, f"all pods of {namespace} run", seconds)
    except TimeoutError as error:
        raise TimeoutError(f"{error}\n{plane.kubectl('describe', 'pods', '-n', namespace)}") from error
    return list(plane.api.get(path)["items"])
