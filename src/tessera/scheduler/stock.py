"""The configuration of the kube-scheduler that we stand beside, as text: the chart and the tests use the same."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from tessera.core.ticket import RESOURCES as TICKETS
from tessera.vendors.registry import VENDORS
from tessera.wire.dialects.native import RESOURCES as NATIVE
from tessera.wire.kube.names import SCHEDULER_NAME

DEFAULT_URL: Final = "http://127.0.0.1:8888"
DEFAULT_LEASE: Final = "tessera-system/tessera-scheduler"


@dataclass(frozen=True, slots=True)
class Settings:
    """``lease`` is ``NAMESPACE/NAME``, empty for a single kube-scheduler without election."""

    profiles: Sequence[str] = (SCHEDULER_NAME,)
    url: str = DEFAULT_URL
    lease: str = DEFAULT_LEASE
    qps: int = 1000


def managed_resources() -> list[dict[str, Any]]:
    """Tickets, which kube-scheduler counts too, and the resources that only we count.

    A resource that no node has makes a pod unschedulable unless it is listed here, so all names are.
    """
    ignored = [*NATIVE, *(name for vendor in VENDORS for name in (vendor.hami.count, *vendor.hami.shares))]
    return [
        *({"name": name, "ignoredByScheduler": False} for name in TICKETS),
        *({"name": name, "ignoredByScheduler": True} for name in dict.fromkeys(ignored)),
    ]


def configuration(settings: Settings = Settings()) -> dict[str, Any]:
    """A ``KubeSchedulerConfiguration``.

    The client's limit is raised because the default of 50 requests a second makes a toy of it; a pod that finds no
    room is tried again within 5 s of a change, not 10.
    """
    election: dict[str, Any] = {"leaderElect": False}
    if settings.lease:
        namespace, _, name = settings.lease.partition("/")
        election = {"leaderElect": True, "resourceNamespace": namespace, "resourceName": name}
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"qps": settings.qps, "burst": 2 * settings.qps},
        "leaderElection": election,
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 5,
        "profiles": [{"schedulerName": name} for name in settings.profiles],
        "extenders": [
            {
                "urlPrefix": settings.url,
                "filterVerb": "filter",
                "bindVerb": "bind",
                "weight": 1,
                "enableHTTPS": False,
                "httpTimeout": "10s",
                "nodeCacheCapable": True,
                "ignorable": False,
                "managedResources": managed_resources(),
            }
        ],
    }


def render(settings: Settings = Settings()) -> str:
    """The configuration as YAML."""
    return yaml.safe_dump(configuration(settings), sort_keys=False)
