"""Tickets: what lets a node agent know which container the kubelet is allocating for.

The device-plugin API names neither pod nor container: ``Allocate`` carries a resource and so many device ids. A
ticket is a number that is written as *how many* of *which* resource a container asks for, so that the call gives
the number back. Numbers are unique among the containers that wait on one node; a running container keeps its
devices but not its number.
"""

from collections.abc import Container as Collection
from dataclasses import dataclass
from typing import Final

KEYS: Final = 16
"""Ticket resources, and so device plugins on a node."""

QUANTITIES: Final = 32
"""The most that a container asks of one ticket resource."""

TICKETS: Final = KEYS * QUANTITIES
"""Numbers run from 0 to ``TICKETS - 1``: how many containers can wait on one node at once."""

DEVICES_PER_KEY: Final = 2048
"""Ticket devices that an agent advertises of each resource. A node runs 110 pods by default; 330 containers spread
over 16 keys take 350 devices of each on average, so running containers leave room for the next."""

PREFIX: Final = "tessera.dev/ticket-"

RESOURCES: Final = tuple(f"{PREFIX}{key:x}" for key in range(KEYS))
"""The names of the ticket resources, by key."""

_KEY_OF: Final = {name: key for key, name in enumerate(RESOURCES)}


@dataclass(frozen=True, slots=True)
class Ticket:
    """A ticket's number. Raises ``ValueError`` for a number out of range."""

    number: int

    def __post_init__(self) -> None:
        if not 0 <= self.number < TICKETS:
            raise ValueError(f"ticket {self.number} is not between 0 and {TICKETS - 1}")

    @property
    def resource(self) -> str:
        """The resource that the container asks for."""
        return RESOURCES[self.number // QUANTITIES]

    @property
    def quantity(self) -> int:
        """How many of it."""
        return self.number % QUANTITIES + 1


def ticket_of(resource: str, quantity: int) -> Ticket | None:
    """The ticket that asking for ``quantity`` of ``resource`` means; ``None`` where it means none."""
    key = _KEY_OF.get(resource)
    if key is None or not 1 <= quantity <= QUANTITIES:
        return None
    return Ticket(key * QUANTITIES + quantity - 1)


def next_ticket(start: int, taken: Collection[int]) -> Ticket | None:
    """The first number from ``start`` on, round the end, that is not ``taken``; ``None`` where all are."""
    for step in range(TICKETS):
        number = (start + step) % TICKETS
        if number not in taken:
            return Ticket(number)
    return None
