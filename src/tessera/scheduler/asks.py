"""What a pod asks, read once: most pods come in hundreds that are alike."""

from dataclasses import dataclass
from typing import Final

from tessera.core.request import Pod, Request
from tessera.policy.soft import Wishes
from tessera.scheduler.facts import PodFacts
from tessera.wire.kube.request import decode_request

REMEMBERED_TEXTS: Final = 4096


@dataclass(frozen=True, slots=True)
class Ask:
    """A pod with the request that it was admitted with."""

    facts: PodFacts
    pod: Pod
    request: Request
    wishes: Wishes | None = None


class Requests:
    """Requests by their text. Equal texts give the same object, by which the index knows it."""

    def __init__(self) -> None:
        self._known: dict[str, Request | str] = {}

    def of(self, text: str | None) -> Request | str | None:
        """The request; ``None`` for no text; what is wrong with it where it is none."""
        if text is None:
            return None
        found = self._known.get(text)
        if found is None:
            if len(self._known) >= REMEMBERED_TEXTS:
                self._known.clear()
            found = self._known[text] = _read(text)
        return found

    def ask(self, facts: PodFacts, wishes: Wishes | None = None) -> Ask | str | None:
        """What the pod asks; ``None`` where it has no request; why not where it has one that cannot be met."""
        request = self.of(facts.request)
        if request is None or isinstance(request, str):
            return request
        if facts.flaw:
            return facts.flaw
        asking = {name for claim in request.claims for name in claim.containers}
        strangers = asking - {container.name for container in facts.containers}
        if strangers:
            return f"is for containers that the pod does not have ({', '.join(sorted(strangers))})"
        unnumbered = asking - dict(facts.tickets).keys()
        if unnumbered:
            return f"has no ticket for containers {', '.join(sorted(unnumbered))}: delete and create the pod again"
        pod = Pod(facts.namespace, facts.name, facts.uid, facts.containers, request)
        return Ask(facts, pod, request, wishes)


def _read(text: str) -> Request | str:
    try:
        return decode_request(text)[0]
    except ValueError as error:
        return str(error)
