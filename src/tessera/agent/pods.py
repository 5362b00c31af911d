"""The pods of this node: as the watch shows them, by uid, and as the API server has them now."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from tessera.agent.cgroups import bare_id
from tessera.core.placement import Grant
from tessera.runtime.kube.events import Subject
from tessera.runtime.kube.informer import Informer
from tessera.runtime.kube.port import PODS, ConnectionLostError, KubeClient, Select
from tessera.wire.kube.allocation import decode_allocation
from tessera.wire.kube.names import ALLOCATION
from tessera.wire.kube.objects import ContainerStatus, KubePod

LIST_SECONDS: Final = 5.0


def on_node(node: str) -> Select:
    """The pods that are bound to a node, of any scheduler and namespace."""
    return Select(fields=f"spec.nodeName={node}")


class NodePods:
    """See the module."""

    def __init__(self, client: KubeClient, informer: Informer[KubePod, KubePod], node: str) -> None:
        self._client, self._informer, self.node = client, informer, node
        self._by_uid: dict[str, KubePod] = {}
        informer.handlers.append(self._follow)

    def _follow(self, old: KubePod | None, new: KubePod | None) -> None:
        if old is not None:
            self._by_uid.pop(old.metadata.uid, None)
        if new is not None:
            self._by_uid[new.metadata.uid] = new

    def known(self) -> Iterable[KubePod]:
        """As the watch has shown them."""
        return tuple(self._by_uid.values())

    def by_uid(self, uid: str) -> KubePod | None:
        """A pod that the watch has shown."""
        return self._by_uid.get(uid)

    def is_over(self, uid: str) -> bool:
        """Whether nothing of a pod runs any more, by the watch: it is gone, or its containers ended for good."""
        pod = self._by_uid.get(uid)
        return pod is None or pod.finished

    def has_ended(self, uid: str, container: str, container_id: str) -> bool:
        """Whether the kubelet says that this very container does not run any more (another may, after it)."""
        pod = self._by_uid.get(uid)
        statuses = statuses_of(pod) if pod and container_id else ()
        return any(
            status.name == container
            and bare_id(status.container_id) == container_id
            and status.state is not None
            and status.state.running is None
            for status in statuses
        )

    async def listed(self) -> Iterable[KubePod]:
        """As the API server has them now. Raises :class:`ApiError` or :class:`ConnectionLostError`."""
        try:
            listed = await asyncio.wait_for(self._client.list(PODS, KubePod, on_node(self.node)), LIST_SECONDS)
        except TimeoutError as error:
            raise ConnectionLostError(f"the API server does not answer within {LIST_SECONDS:g} s") from error
        return listed.items

    def allocated(self, uid: str, container: str) -> Mapping[str, int] | None:
        """What a pod's allocation gives a container (uuid to MiB); ``None`` for a pod that we do not know."""
        pod = self._by_uid.get(uid)
        if pod is None:
            return None
        grants = allocation_of(pod, self.node).get(container, ())
        return {grant.uuid: grant.share.memory_limit for grant in grants}


def allocation_of(pod: KubePod, node: str) -> Mapping[str, tuple[Grant, ...]]:
    """Who of a pod's containers got what; nothing where the pod carries no allocation that we believe."""
    meta = pod.metadata
    try:
        allocation = decode_allocation(meta.annotation(ALLOCATION) or "", uid=meta.uid, key=meta.key, node=node)
    except ValueError:
        return {}
    return allocation.placement.grants


def statuses_of(pod: KubePod) -> tuple[ContainerStatus, ...]:
    """What the kubelet says of all containers."""
    return (*(pod.status.init_container_statuses or ()), *(pod.status.container_statuses or ()))


def subject_of(pod: KubePod) -> Subject:
    """The pod as events name it."""
    return Subject("Pod", pod.metadata.name, pod.metadata.uid, pod.metadata.namespace)
