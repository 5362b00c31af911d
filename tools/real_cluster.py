"""The real engine for a person: build it, leave a cluster running, stop it.

Usage: ``python tools/real_cluster.py build [--if-possible] | up [--simulated] | down``.

With ``--if-possible`` a build that cannot be is no failure, but in continuous integration it is; ``--simulated``
leaves the real node out. A cluster lives in ``TESSERA_CLUSTER`` (default: ``~/.cache/tessera/cluster``).
"""

import json
import os
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from cluster.engine import binaries

FOLDER: Final = Path(os.environ.get("TESSERA_CLUSTER") or Path.home() / ".cache/tessera/cluster")
RECORD: Final = FOLDER / "cluster.json"
SIMULATED: Final = 4


def start_time(pid: int) -> str:
    """When a process started, in clock ticks since boot: with the pid it names a process. Empty: it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    except OSError:
        return ""


def build(*, if_possible: bool) -> int:
    """Build the engine, or say why that is not possible."""
    try:
        print(f"engine: {binaries.build()}")
        if lacking := binaries.missing_reason(*binaries.NAMES):
            print(f"engine: {lacking}. Tests that need them are left out.")
    except binaries.EngineMissingError as missing:
        print(f"engine: {missing}", file=sys.stderr)
        return 0 if if_possible and os.environ.get("CI") != "true" else 1
    return 0


def up(*, real: bool) -> int:
    """Start a control plane, simulated nodes and, as root, a real one, and leave them running."""
    from cluster.engine.kinds import install_kinds  # noqa: PLC0415 - `build` runs without the project's packages
    from cluster.engine.nodes import add_nodes, some_nodes  # noqa: PLC0415
    from cluster.engine.plane import ControlPlane, Options  # noqa: PLC0415

    if RECORD.exists():
        print(f"a cluster runs already: export KUBECONFIG={FOLDER / 'kubeconfig'} (make cluster-down ends it)")
        return 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    plane = ControlPlane(FOLDER, Options(outlives=True))
    record: dict[str, Any] = {"programs": {}, "node": None}
    try:
        plane.start()
        install_kinds(plane)
        add_nodes(plane, some_nodes(SIMULATED, "simulated", devices=4, model="A100"))
        record["node"] = start_real_node(plane) if real else None
    except BaseException:
        plane.stop()
        raise
    record["programs"] = {name: [s.pid, start_time(s.pid)] for name, s in plane.services.items()}
    RECORD.write_text(json.dumps(record, indent=1))
    print(f"kubectl and helm: {binaries.program('kubectl').parent}\nlogs:             {plane.logs}")
    print(f"stop it with:     make cluster-down\n\nexport KUBECONFIG={plane.kubeconfig}")
    return 0


def start_real_node(plane: Any) -> str | None:
    """The folder of a real node that was started; where none can run here, that is said."""
    from cluster.engine.node import NodeOptions, RealNode, missing_node_reason  # noqa: PLC0415

    if reason := missing_node_reason():
        print(f"no real node: {reason}")
        return None
    node = RealNode(plane, NodeOptions(outlives=True))
    try:
        node.start()
    except BaseException:
        node.stop()
        raise
    plane.add_service(node.containerd)
    plane.add_service(node.kubelet)
    return str(node.folder)


def down() -> int:
    """End what :func:`up` started, the last program first, and delete its folder."""
    from cluster.engine.service import wait_until  # noqa: PLC0415
    from cluster.engine.sweep import remove_folder, sweep_containers  # noqa: PLC0415

    if not RECORD.exists():
        print("no cluster runs")
        return 0
    record = json.loads(RECORD.read_text())
    for name, (pid, started) in reversed(record["programs"].items()):
        if start_time(pid) != started:
            continue
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        wait_until(lambda pid=pid, started=started: start_time(pid) != started, f"{name} ends", 30)  # type: ignore[misc]
    if record["node"]:
        sweep_containers(Path(record["node"]))
        remove_folder(Path(record["node"]))
    shutil.rmtree(FOLDER)
    print("the cluster is gone")
    return 0


def main(arguments: list[str]) -> int:
    """Run one verb."""
    match arguments:
        case ["build", *options]:
            return build(if_possible="--if-possible" in options)
        case ["up", *options]:
            return build(if_possible=False) or up(real="--simulated" not in options)
        case ["down"]:
            return down()
        case _:
            print(__doc__, file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
