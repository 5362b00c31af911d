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
    """The resources of which only we keep count: tickets, and what users ask for.

    A resource that no node has makes a pod unschedulable unless it is listed here, so all names are. Tickets are
    too, although nodes have those: a pod that kube-scheduler itself refuses for them never reaches us and is not
    looked at when they come, because its test of whether a changed node helps (``isFit``) takes no account of
    what is ignored and finds no node with the resources that users ask for. So it waited for five minutes.
    Source: Kubernetes 1.37 pkg/scheduler/framework/plugins/noderesources/fit.go (isSchedulableAfterNodeChange).
    """
    asked = [*NATIVE, *(name for vendor in VENDORS for name in (vendor.hami.count, *vendor.hami.shares))]
    return [{"name": name, "ignoredByScheduler": True} for name in dict.fromkeys([*TICKETS, *asked])]


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
