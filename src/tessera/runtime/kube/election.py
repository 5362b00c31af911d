"""Leadership by Lease: holding one (:class:`Elector`), and knowing who holds one (:class:`LeaseWatch`).

Time stamps in a Lease come from other machines' clocks, so they are compared with each other only to see *that* a
lease was renewed, never with a clock of ours. How long ago is measured on the local monotonic clock:

* who holds a lease trusts it from the moment at which the renewal was *sent*, for less than its duration;
* who wants it waits for its whole duration from the moment at which the last renewal was *received*.

Whatever the clocks say, the first interval ends before the second. What remains is trust in equal clock rates:
the default of 10 s against 15 s bears a clock that runs a third too slowly.

Source: client-go tools/leaderelection (the record's fields and their use); the rules for observation are ours.
"""

import asyncio
import contextlib
import datetime as dt
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tessera.runtime.clock import SYSTEM, Clock, within
from tessera.runtime.kube.port import LEASES, ApiError, ConnectionLostError, KubeClient
from tessera.runtime.log import logger
from tessera.wire.kube.objects import Lease

_log: Final = logger("election")


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds: others wait for ``duration``, we trust a renewal for ``deadline``, and renew every ``retry``."""

    duration: int = 15
    deadline: float = 10.0
    retry: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.retry < self.deadline < self.duration:
            raise ValueError(f"a lease needs retry < deadline < duration, not {self}")


@dataclass(frozen=True, slots=True)
class Term:
    """One uninterrupted time in office: A, then B, then A again are three terms. ``lease`` is the Lease's uid."""

    holder: str
    transitions: int
    lease: str


@dataclass(frozen=True, slots=True)
class _Record:
    """What a renewal changes; an edit of labels or annotations changes nothing here."""

    term: Term
    renewed: str
    acquired: str


class Elector:
    """One candidate. ``leading`` is true only while the lease is certainly ours: ask it before every act.

    ``identity`` gets a random suffix: two processes never share one, and a process that was restarted is another.
    The callbacks are called on the loop and must not wait.
    """

    def __init__(
        self,
        client: KubeClient,
        lease: str,
        identity: str,
        *,
        timing: Timing = Timing(),
        clock: Clock = SYSTEM,
        chance: random.Random | None = None,
    ) -> None:
        self._chance = chance or random.SystemRandom()
        self._client, self._clock, self._timing = client, clock, timing
        self._namespace, self._name = _place(lease)
        self.identity = f"{identity}_{self._chance.getrandbits(64):016x}"
        self.on_gain: Callable[[], None] = lambda: None
        self.on_loss: Callable[[str], None] = lambda _: None
        self._trusted_until = float("-inf")
        self._told = False
        self._mine: Lease | None = None
        self._seen: _Record | None = None
        self._seen_at = 0.0

    @property
    def leading(self) -> bool:
        """Whether the lease is ours at this very moment."""
        return self._told and self._clock.monotonic() < self._trusted_until

    async def run(self) -> None:
        """Stand for election until cancelled; then release the lease."""
        try:
            while True:
                await self._turn()
                await self._clock.sleep(self._pause())
        finally:
            held, self._trusted_until = self._mine, float("-inf")
            self._lose("ended")
            if held:
                with contextlib.suppress(ApiError, ConnectionLostError, TimeoutError):
                    await within(self._clock, self._timing.retry, self._release(held))

    async def _turn(self) -> None:
        """Try once to get or keep the lease, for no longer than it can be trusted."""
        patience = self._timing.deadline / 2  # so that one request that hangs is not all there is
        if self._told:
            patience = max(0.0, min(patience, self._trusted_until - self._clock.monotonic()))
        try:
            await within(self._clock, patience, self._try())
        except (ApiError, ConnectionLostError, TimeoutError) as error:
            _log.warning("lease not reached", lease=self._name, error=str(error))
        if self._told and self._clock.monotonic() >= self._trusted_until:
            self._lose("it could not be renewed in time")

    def _pause(self) -> float:
        """Until the next try; never past the end of what can be trusted, so that a loss is told in time."""
        pause = self._timing.retry * self._chance.uniform(0.9, 1.1)
        left = self._trusted_until - self._clock.monotonic()
        return min(pause, max(left, 0.0)) if self._told else pause

    async def _try(self) -> None:
        lease = self._mine or await self._read()
        if lease is None:
            await self._write(None)
        elif lease.spec.holder_identity == self.identity or self._is_free(lease):
            try:
                await self._write(lease)
            except ApiError as error:
                if error.code not in (404, 409):
                    raise
                await self._reconsider()

    async def _reconsider(self) -> None:
        """Our view of the lease is old: either somebody else has it, or an answer of the server was lost."""
        self._mine = None
        lease = await self._read()
        if lease is not None and lease.spec.holder_identity == self.identity:
            await self._write(lease)
        elif self._told:
            self._lose(f"{(lease and lease.spec.holder_identity) or 'nobody'} holds it")

    async def _read(self) -> Lease | None:
        try:
            return await self._client.get(LEASES, self._name, Lease, namespace=self._namespace)
        except ApiError as error:
            if error.code != 404:
                raise
            return None

    def _is_free(self, lease: Lease) -> bool:
        """Whether nobody holds it, or nobody renewed it for its whole duration before our eyes."""
        if not lease.spec.holder_identity:
            return True
        record, now = _record(lease), self._clock.monotonic()
        if record != self._seen:
            self._seen, self._seen_at = record, now
        return now - self._seen_at >= (lease.spec.lease_duration_seconds or self._timing.duration)

    async def _write(self, old: Lease | None) -> None:
        """Take or renew; trust it from the moment before the request left."""
        sent = self._clock.monotonic()
        stamp = _stamp(self._clock.wall())
        renewing = old is not None and old.spec.holder_identity == self.identity
        transitions = 0 if old is None else (old.spec.lease_transitions or 0) + (0 if renewing else 1)
        spec = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self._timing.duration,
            "acquireTime": (old.spec.acquire_time if renewing and old else None) or stamp,
            "renewTime": stamp,
            "leaseTransitions": transitions,
        }
        self._mine = await self._put(old, spec)
        self._trusted_until = sent + self._timing.deadline
        if not self._told and self._may_trust(sent):
            self._told = True
            _log.info("leading", lease=self._name, identity=self.identity, term=transitions)
            self.on_gain()

    def _may_trust(self, sent: float) -> bool:
        """Whether a write that was sent at ``sent`` may still be trusted now that it was answered."""
        return self._clock.monotonic() < sent + self._timing.deadline

    async def _put(self, old: Lease | None, spec: dict[str, Any]) -> Lease:
        meta: dict[str, Any] = {"name": self._name, "namespace": self._namespace}
        if old is None:
            return await self._client.create(LEASES, _body(meta, spec), Lease, namespace=self._namespace)
        meta["resourceVersion"] = old.metadata.resource_version
        if old.metadata.labels:
            meta["labels"] = old.metadata.labels
        if old.metadata.annotations:
            meta["annotations"] = old.metadata.annotations
        return await self._client.replace(LEASES, self._name, _body(meta, spec), Lease, namespace=self._namespace)

    async def _release(self, held: Lease) -> None:
        """Say that nobody holds it, also where a renewal that was on its way when we ended came in first."""
        try:
            await self._put(held, self._vacancy(held))
        except ApiError as error:
            lease = await self._read() if error.code == 409 else None
            if lease is None or lease.spec.holder_identity != self.identity:
                raise
            await self._put(lease, self._vacancy(lease))
        _log.info("released", lease=self._name)

    def _vacancy(self, held: Lease) -> dict[str, Any]:
        return {
            "holderIdentity": "",
            "leaseDurationSeconds": 1,
            "renewTime": _stamp(self._clock.wall()),
            "leaseTransitions": held.spec.lease_transitions or 0,
        }

    def _lose(self, why: str) -> None:
        self._mine = None
        if self._told:
            self._told = False
            _log.warning("not leading", lease=self._name, why=why)
            self.on_loss(why)


class LeaseWatch:
    """Who holds a Lease that others contend for, such as a kube-scheduler's.

    It asks the API server every ``period`` seconds, and between whenever :meth:`look` is called. A renewal counts
    from the last look *before* it was seen, hence never later than it happened: what this says ends before the
    earliest moment at which another candidate may take the lease. A lease that was never seen renewed is not held.
    """

    def __init__(self, client: KubeClient, lease: str, *, period: float = 1.0, clock: Clock = SYSTEM) -> None:
        self._client, self._clock, self._period = client, clock, period
        self._namespace, self._name = _place(lease)
        self._record: _Record | None = None
        self._duration = 0
        self._looked: float | None = None
        self._renewed_after: float | None = None
        self._looking: asyncio.Task[None] | None = None

    @property
    def term(self) -> Term | None:
        """The term of whoever holds the lease; ``None`` while nobody is seen to."""
        return self._record.term if self._record and self._is_fresh() else None

    def holds(self, prefix: str) -> bool:
        """Whether the holder is ``<prefix>_<something>``, as kube-scheduler calls itself on host ``prefix``."""
        return self.obstacle(prefix) is None

    def obstacle(self, prefix: str) -> str | None:
        """Why ``holds`` is false, for readiness; ``None`` while it is true."""
        if self._record is None:
            return f"nobody has been seen to hold lease {self._namespace}/{self._name}"
        holder = self._record.term.holder
        if holder.rpartition("_")[0] != prefix:
            return f"lease {self._name} is held by {holder}, not by {prefix}"
        if not self._is_fresh():
            return f"lease {self._name} was not seen renewed within its {self._duration} s"
        return None

    async def run(self) -> None:
        """Look every ``period`` seconds until cancelled."""
        while True:
            await self.look()
            await self._clock.sleep(self._period)

    async def look(self) -> None:
        """Ask now, or wait for the answer that is on its way. A failure changes nothing of what is known."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self._look())
        await asyncio.shield(self._looking)

    async def _look(self) -> None:
        sent = self._clock.monotonic()
        try:
            ask = self._client.get(LEASES, self._name, Lease, namespace=self._namespace)
            lease: Lease | None = await within(self._clock, 5 * self._period, ask)
        except ApiError as error:
            if error.code != 404:
                _log.warning("lease not read", lease=self._name, error=str(error))
                return
            lease = None
        except (ConnectionLostError, TimeoutError) as error:
            _log.warning("lease not read", lease=self._name, error=str(error))
            return
        self._observe(lease, sent)

    def _observe(self, lease: Lease | None, sent: float) -> None:
        before, self._looked = self._looked, sent
        if lease is None or not lease.spec.holder_identity:
            self._record = self._renewed_after = None
            return
        record = _record(lease)
        if record == self._record:
            return
        # Seen for the first time, a lease may have been renewed long ago; only a change since our last look tells.
        self._renewed_after = before
        self._record, self._duration = record, lease.spec.lease_duration_seconds or 0

    def _is_fresh(self) -> bool:
        if self._renewed_after is None:
            return False
        return self._clock.monotonic() < self._renewed_after + self._duration


def _record(lease: Lease) -> _Record:
    spec = lease.spec
    term = Term(spec.holder_identity or "", spec.lease_transitions or 0, lease.metadata.uid)
    return _Record(term, spec.renew_time or "", spec.acquire_time or "")


def _place(lease: str) -> tuple[str, str]:
    namespace, slash, name = lease.partition("/")
    if not slash or not namespace or not name:
        raise ValueError(f"a lease is named NAMESPACE/NAME, not {lease!r}")
    return namespace, name


def _body(meta: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": meta, "spec": spec}


def _stamp(wall: float) -> str:
    """MicroTime, as Leases carry it."""
    return dt.datetime.fromtimestamp(wall, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
