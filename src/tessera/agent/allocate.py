"""``Allocate``: from a ticket to a share that lies on disk and an answer, or a refusal that says what to do.

An answer is decided and written without a pause in between, so that two calls cannot take one container for two.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from tessera.agent.answer import Answer, Plain, Sources, answer_of
from tessera.agent.candidates import Candidate, Choice, Nobody, Refusal, Stage, choose
from tessera.agent.grant import VERSION, ContainerGrant, granted_devices
from tessera.agent.payload import Payload, damaged, unsound
from tessera.agent.store import ShareStore
from tessera.core.device import Device
from tessera.core.errors import TesseraError, UnavailableError
from tessera.core.ticket import Ticket, ticket_of
from tessera.runtime.clock import Clock
from tessera.runtime.log import logger
from tessera.vendors.spec import NodeNames
from tessera.wire.kube.objects import KubePod

PATIENCE_SECONDS: Final = 3.0
"""For a pod that the kubelet knows and our watch has not shown yet; the kubelet admits nobody else meanwhile."""
LOOK_SECONDS: Final = 0.05

_log: Final = logger("agent.allocate")


class PodSource(Protocol):
    """The pods of this node."""

    def known(self) -> Iterable[KubePod]:
        """As the watch has shown them."""
        ...

    async def listed(self) -> Iterable[KubePod]:
        """As the API server has them now. Raises :class:`TesseraError`."""
        ...


@dataclass(frozen=True, slots=True)
class NodeDevice:
    """A device that may be handed out, or ``why`` not; ``plain`` is what it takes without CDI."""

    device: Device
    names: NodeNames
    why: str = ""


@dataclass(frozen=True, slots=True)
class Offer:
    """What this node can give now. ``refusal`` says why nothing at all; ``plain`` is set where there is no CDI.

    There is a refusal or a payload.
    """

    devices: Mapping[str, NodeDevice]
    payload: Payload | None
    refusal: UnavailableError | None = None
    plain: Callable[[Collection[str]], Plain] | None = None


class AllocateError(TesseraError):
    """No answer: the kubelet shows the message at the pod."""


class Allocator:
    """See the module."""

    def __init__(
        self, node: str, pods: PodSource, store: ShareStore, offer: Callable[[], Offer], clock: Clock
    ) -> None:
        self._node, self._pods, self._store, self._offer, self._clock = node, pods, store, offer, clock

    async def allocate(self, resource: str, quantity: int) -> Answer:
        """The answer for so many of a ticket resource. Raises :class:`AllocateError`."""
        ticket = ticket_of(resource, quantity)
        if ticket is None:
            what = f"tessera: {quantity} of {resource} is no ticket; leave ticket resources to Tessera's webhook"
            raise AllocateError(what)
        choice = await self._choice(ticket)
        if isinstance(choice, Candidate):
            try:
                answer = self._answer(choice, ticket)
            except UnavailableError as error:
                choice = Refusal(f"{choice.title}: {error}")
            else:
                devices = [grant.uuid for grant in choice.grants]
                pod, container = choice.pod.metadata.key, choice.container
                _log.info("allocated", pod=pod, container=container, ticket=ticket.number, devices=devices)
                return answer
        message = choice.message if isinstance(choice, Refusal) else _nobody(ticket, self._node)
        _log.warning("refused", ticket=ticket.number, reason=message)
        raise AllocateError(f"tessera: {message}")

    async def _choice(self, ticket: Ticket) -> Choice:
        """By what we know where that is a container that was never answered, else by the API server's word."""
        deadline = self._clock.monotonic() + PATIENCE_SECONDS
        while True:
            choice = self._choose(self._pods.known(), ticket)
            if isinstance(choice, Candidate) and choice.stage is Stage.NEW:
                return choice
            if not isinstance(choice, Nobody) or self._clock.monotonic() >= deadline:
                break
            await self._clock.sleep(LOOK_SECONDS)
        try:
            return self._choose(await self._pods.listed(), ticket)
        except TesseraError as error:
            if isinstance(choice, Refusal):
                return choice
            return Refusal(
                f"which container asks with ticket {ticket.number} cannot be known: {error}; "
                "delete the pod once the API server answers again"
            )

    def _choose(self, pods: Iterable[KubePod], ticket: Ticket) -> Choice:
        return choose(pods, ticket, self._node, self._store.has)

    def _answer(self, candidate: Candidate, ticket: Ticket) -> Answer:
        offer = self._offer()
        payload = _sound(offer)
        devices = [_usable(offer, grant.uuid, self._node) for grant in candidate.grants]
        meta = candidate.pod.metadata
        grant = ContainerGrant(
            v=VERSION,
            uid=meta.uid,
            namespace=meta.namespace,
            pod=meta.name,
            container=candidate.container,
            ticket=ticket.number,
            devices=granted_devices(candidate.grants),
            library=payload.digest,
        )
        share = self._store.put(grant)
        sources = Sources(str(share.region), str(payload.library), str(payload.preload))
        plain = offer.plain([device.device.uuid for device in devices]) if offer.plain else None
        return answer_of(share.grant, sources, devices[0].names, plain)


def _sound(offer: Offer) -> Payload:
    """The limiter, still the file that was installed. Raises :class:`UnavailableError`."""
    if offer.refusal is not None:
        raise UnavailableError(f"this node hands out no shares: {offer.refusal.what}", offer.refusal.remedy)
    assert offer.payload is not None, "without the limiter there is a refusal"
    if (place := unsound(offer.payload)) is not None:
        raise damaged(place)
    return offer.payload


def _usable(offer: Offer, uuid: str, node: str) -> NodeDevice:
    found = offer.devices.get(uuid)
    if found is None:
        what = f"device {uuid} is not on node {node}"
        raise UnavailableError(what, "delete the pod, so that it is placed anew")
    if found.why or not found.device.healthy:
        what = f"device {uuid} is not healthy: {found.why or 'no reason given'}"
        raise UnavailableError(what, "delete the pod, so that it is placed anew")
    return found


def _nobody(ticket: Ticket, node: str) -> str:
    return (
        f"no container of a pod bound to node {node} asks for {ticket.quantity} of {ticket.resource} "
        f"(ticket {ticket.number}); if the pod is still there, delete it, so that it is placed anew"
    )


Allocate = Callable[[str, int], Awaitable[Answer]]
"""What a device plugin asks; :meth:`Allocator.allocate`."""
