"""Pods of every dialect and shape, drawn by seed, as their users write them: all of them pass the webhook."""

import json
import random
from collections.abc import Callable
from typing import Any, Final

LIFE: Final = "chaos.test/life"
"""Annotation: what a simulated kubelet makes of the pod, see :func:`a_life`."""

HOLLOW: Final = {"chaos.test/kind": "hollow"}
REAL: Final = {"kubernetes.io/hostname": "localhost"}
MEMORY: Final = (2_000, 5_000, 10_000, 13_000, 20_000, 40_000)
CORES: Final = (0, 10, 25, 50)
WRONG_SHARE: Final = 77
"""How a tenant ends that sees another share than its pod asked for."""

Containers = dict[str, Any]


def a_life(rng: random.Random) -> dict[str, Any]:
    """Seconds until it runs, restarts, seconds until it ends and how; ``run`` ``None``: until it is deleted."""
    return {
        "start": round(rng.expovariate(2.0), 2),
        "restarts": rng.choice((0, 0, 0, 1, 3)),
        "run": None if rng.random() < 0.25 else round(rng.uniform(0.5, 20.0), 1),
        "end": rng.choice(("Succeeded", "Succeeded", "Failed")),
        "linger": round(rng.uniform(0.0, 1.5), 2),
    }


def _container(name: str, limits: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    resources = {"resources": {"limits": limits}} if limits else {}
    return {"name": name, "image": "none", **resources, **more}


def _hami(rng: random.Random) -> dict[str, str]:
    if rng.random() < 0.15:
        return {"nvidia.com/gpu": str(rng.choice((1, 2)))}
    return {
        "nvidia.com/gpu": rng.choice(("1", "1", "1", "2")),
        "nvidia.com/gpumem": str(rng.choice(MEMORY)),
        "nvidia.com/gpucores": str(rng.choice(CORES)),
    }


def _native(rng: random.Random) -> dict[str, str]:
    if rng.random() < 0.15:
        return {"tessera.dev/gpu": str(rng.choice((1, 2, 4)))}
    return {
        "tessera.dev/gpu": rng.choice(("1", "1", "2")),
        "tessera.dev/memory": f"{rng.choice((1, 4, 8, 20, 39))}Gi",
        "tessera.dev/compute": str(rng.choice(CORES)),
    }


def hami(rng: random.Random) -> Containers:
    """One container."""
    return {"containers": [_container("main", _hami(rng))]}


def native(rng: random.Random) -> Containers:
    """One container."""
    return {"containers": [_container("main", _native(rng))]}


def tensor_fusion(rng: random.Random) -> Containers:
    """One container that holds, or two that hold jointly."""
    memory = f"{rng.choice((1, 4, 10, 30))}Gi"
    keys = {"vram-limit": memory, "compute-percent-limit": str(rng.choice((10, 25, 50)))}
    if rng.random() < 0.3:
        keys["gpu-count"] = "2"
    names = ["main", "second"] if rng.random() < 0.3 else ["main"]
    keys["inject-container"] = ",".join(names)
    annotations = {f"tensor-fusion.ai/{key}": value for key, value in keys.items()}
    return {
        "labels": {"tensor-fusion.ai/enabled": "true"},
        "annotations": annotations,
        "containers": [_container(name) for name in names],
    }


def several(rng: random.Random) -> Containers:
    """Two containers with a share each, beside one without."""
    ask = rng.choice((_hami, _native))
    return {"containers": [_container("main", ask(rng)), _container("plain"), _container("second", ask(rng))]}


def with_init(rng: random.Random) -> Containers:
    """An init container whose share ends before the other begins."""
    ask = rng.choice((_hami, _native))
    return {"initContainers": [_container("first", ask(rng))], "containers": [_container("main", ask(rng))]}


def with_sidecar(rng: random.Random) -> Containers:
    """A sidecar, whose share lasts."""
    side = _container("side", _hami(rng), restartPolicy="Always")
    return {"initContainers": [side], "containers": [_container("main", _hami(rng))]}


SHAPES: Final[tuple[Callable[[random.Random], Containers], ...]] = (
    hami,
    hami,
    native,
    tensor_fusion,
    several,
    with_init,
    with_sidecar,
)


def hollow_pod(rng: random.Random, name: str) -> dict[str, Any]:
    """A pod for the simulated nodes."""
    drawn = rng.choice(SHAPES)(rng)
    annotations = {LIFE: json.dumps(a_life(rng)), **drawn.pop("annotations", {})}
    labels = {"app": f"a{rng.randrange(4)}", **drawn.pop("labels", {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations, "labels": labels},
        "spec": {
            "nodeSelector": HOLLOW,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": rng.randrange(3),
            **drawn,
        },
    }


def real_pod(rng: random.Random, name: str, image: str) -> dict[str, Any]:
    """A pod for the real node: its tenant looks at its share, then holds 64 MiB for a while."""
    mib = rng.choice((256, 512, 1000, 4096))
    look = f'case "$(tenant show)" in *"cuda_total_mib {mib}"*) ;; *) exit {WRONG_SHARE};; esac'
    script = f"{look}; exec tenant hold 64 {rng.randint(1, 15)}"
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(mib), "nvidia.com/gpucores": "5"}
    container = _container("main", limits, args=[script]) | {"image": image}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "real"}},
        "spec": {
            "nodeSelector": REAL,
            "restartPolicy": rng.choice(("Never", "OnFailure", "Always")),
            "terminationGracePeriodSeconds": rng.randrange(2),
            "containers": [container],
        },
    }


def deployment(name: str, replicas: int) -> dict[str, Any]:
    """A Deployment whose pods run until they are deleted, so that a controller makes pods too."""
    life = {"start": 0.2, "restarts": 0, "run": None, "end": "Succeeded", "linger": 0.2}
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8000", "nvidia.com/gpucores": "20"}
    labels = {"deployment": name}
    spec = {
        "nodeSelector": HOLLOW,
        "terminationGracePeriodSeconds": 1,
        "containers": [_container("main", limits)],
    }
    template = {"metadata": {"labels": labels, "annotations": {LIFE: json.dumps(life)}}, "spec": spec}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
    }
