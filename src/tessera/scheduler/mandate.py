"""Whether we may decide: the lease of our own kube-scheduler is live, and what we know is newer than its term.

Readiness is stamped with the term. A term that ended and began again, with another's between, is a new one: what
was known then says nothing about what the other did.
"""

from collections.abc import Callable, Hashable
from typing import Protocol


class Lease(Protocol):
    """The lease that our kube-scheduler contends for (:class:`tessera.runtime.kube.election.LeaseWatch`)."""

    @property
    def term(self) -> Hashable | None:
        """The term of whoever holds it; ``None`` while nobody is seen to."""
        ...

    def obstacle(self, prefix: str) -> str | None:
        """Why a holder whose name begins with ``prefix`` does not hold it."""
        ...


class Mandate:
    """See the module. ``holder`` is the prefix of our kube-scheduler's identity; no lease: always ours."""

    def __init__(self, lease: Lease | None, holder: str) -> None:
        self._lease, self._holder = lease, holder
        self._known: Hashable | None = None
        self.faults: list[Callable[[], str | None]] = []
        """Further reasons not to decide, asked each time."""

    @property
    def term(self) -> Hashable | None:
        """The term of office that we are in; ``None`` while we are in none."""
        if self._lease is None:
            return "always"
        return None if self._lease.obstacle(self._holder) else self._lease.term

    def rebuilt(self, term: Hashable | None) -> bool:
        """What is known was read after ``term`` began; whether that is the present one."""
        self._known = term
        return self.is_current

    @property
    def is_current(self) -> bool:
        """Whether what is known is of this term."""
        term = self.term
        return term is not None and term == self._known

    def obstacle(self) -> str | None:
        """Why we may not decide; ``None`` while we may."""
        if self._lease is not None and (why := self._lease.obstacle(self._holder)):
            return f"not the leader: {why}"
        if not self.is_current:
            return "not ready: pods are being read anew for this term"
        return next((why for fault in self.faults if (why := fault())), None)
