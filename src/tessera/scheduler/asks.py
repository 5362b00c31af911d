"""What a pod asks, read once: most pods come in hundreds that are alike."""

from dataclasses import dataclass
from typing import Final

from tessera.core.request import Pod, Request
from tessera.scheduler.facts import PodFacts
from tessera.wire.kube.request import decode_request

REMEMBERED_TEXTS: Final = 4096


@dataclass(frozen=True, slots=True)
class Ask:
    """A pod with the request that it was admitted with."""

    facts: PodFacts
    pod: Pod
    request: Request


@dataclass(frozen=True, slots=True)
class _Read:
    """A request and the containers that it is for."""

    request: Request
    containers: frozenset[str]


class Requests:
    """Requests by their text. Equal texts give the same object, by which the index knows it."""

    def __init__(self) -> None:
        self._known: dict[str, _Read | str] = {}

    def of(self, text: str | None) -> Request | str | None:
        """The request; ``None`` for no text; what is wrong with it where it is none."""
        if text is None:
            return None
        found = self._read(text)
        return found if isinstance(found, str) else found.request

    def ask(self, facts: PodFacts) -> Ask | str | None:
        """What the pod asks; ``None`` where it has no request; why not where it has one that cannot be met."""
        if facts.request is None:
            return None
        found = self._read(facts.request)
        if isinstance(found, str):
            return found
        if facts.flaw:
            return facts.flaw
        strangers = found.containers.difference([container.name for container in facts.containers])
        if strangers:
            return f"is for containers that the pod does not have ({', '.join(sorted(strangers))})"
        unnumbered = found.containers.difference([name for name, _ in facts.tickets])
        if unnumbered:
            return f"has no ticket for containers {', '.join(sorted(unnumbered))}: delete and create the pod again"
        pod = Pod(
            facts.namespace,
            facts.name,
            facts.uid,
            facts.containers,
            found.request,
            checked_cpu_milli=facts.cpu_milli,
        )
        return Ask(facts, pod, found.request)

    def _read(self, text: str) -> _Read | str:
        found = self._known.get(text)
        if found is None:
            if len(self._known) >= REMEMBERED_TEXTS:
                self._known.clear()
            found = self._known[text] = _read(text)
        return found


def _read(text: str) -> _Read | str:
    try:
        request = decode_request(text)[0]
    except ValueError as error:
        return str(error)
    return _Read(request, frozenset(name for claim in request.claims for name in claim.containers))
