"""The webhook process, wired: the server, what it answers from, its certificate, its health."""

import asyncio
import random
import socket
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tessera.runtime.kube.events import EventKind, Recorder, Subject
from tessera.runtime.kube.port import KubeClient
from tessera.runtime.log import logger
from tessera.runtime.metrics import Metrics, Unavailable
from tessera.runtime.serve import Answer, Bind, Health, Lean, health_app, serve
from tessera.runtime.shell import Fate, Shell
from tessera.runtime.tls import Lifetimes, ReloadingContext
from tessera.webhook.certificate import USUAL, CertificateKeeper, Place
from tessera.webhook.profiles import KnownProfiles
from tessera.wire.kube.mutation import Tickets
from tessera.wire.kube.objects import Meta
from tessera.wire.kube.review import Admission, Outcome
from tessera.wire.kube.review import Answer as Reviewed
from tessera.wire.kube.verdict import Options

LINGER_SECONDS: Final = 5.0
"""How long an ending replica goes on answering, so that the Service stops sending before it stops listening."""

DEFAULTS: Final = Options()

_log: Final = logger("webhook")


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that flags decide. ``names`` are what the API server calls this webhook."""

    bind: Bind
    metrics_bind: Bind
    place: Place
    names: tuple[str, ...]
    options: Options = DEFAULTS
    lifetimes: Lifetimes = USUAL
    linger: float = LINGER_SECONDS
    chance: random.Random = field(default_factory=random.Random)


async def start(shell: Shell, client: KubeClient, settings: Settings) -> None:
    """Start every part; they end in the reverse order."""
    metrics, health, context, listening = Metrics(), Health(), ReloadingContext(), asyncio.Event()
    shell.on_end("client", client.close)
    profiles = KnownProfiles(client, clock=shell.clock, rng=settings.chance)
    recorder = Recorder(client, "webhook", socket.gethostname(), clock=shell.clock, chance=settings.chance)
    keeper = CertificateKeeper(
        client,
        settings.place,
        settings.names,
        context,
        lifetimes=settings.lifetimes,
        clock=shell.clock,
        repaired=partial(_tell_repaired, recorder),
    )
    metrics.gauge(
        "webhook_certificate_expiry_timestamp_seconds",
        "When the certificate that is served ends, in seconds since 1970.",
        lambda: keeper.expires() or Unavailable("no certificate yet"),
    )
    health.ready.update(
        shell=shell.ending,
        certificate=keeper.unready,
        profiles=profiles.unready,
        server=lambda: None if listening.is_set() else "it does not listen yet",
    )
    shell.supervise("events", recorder.run, Fate.RESTART)
    shell.supervise("profiles", profiles.run, Fate.RESTART)
    shell.supervise("certificate", keeper.run, Fate.RESTART)
    side = await serve(health_app(health, metrics), settings.metrics_bind, name="metrics")
    shell.on_end("metrics", side.close)
    first = Tickets(settings.chance.randrange(1 << 30))
    admission = Admission(settings.options, first, profiles)
    handler = reviewer(admission, profiles, metrics)
    await _certificate(shell, context)
    main = await serve(handler, settings.bind, name="webhook", tls=context.context, linger=settings.linger)
    shell.on_end("webhook", main.close)
    listening.set()


def _tell_repaired(recorder: Recorder, secret: Meta, why: str) -> None:
    note = f"The webhook's certificate was made anew, because of what stood there: {why}."
    subject = Subject("Secret", secret.name, secret.uid, secret.namespace)
    recorder.record(subject, EventKind.WARNING, "CertificateRepaired", note, "Repair")


async def _certificate(shell: Shell, context: ReloadingContext) -> None:
    """Return once there is a certificate: until then a listening port would only break handshakes."""
    while context.loaded is None and not shell.stopping.is_set():
        await shell.clock.sleep(0.05)


def reviewer(admission: Admission, profiles: KnownProfiles, metrics: Metrics) -> Lean:
    """The handler of AdmissionReviews, which counts and times them and writes a line for each refusal."""
    reviews = metrics.counter("webhook_reviews_total", "Reviews by outcome and dialect.", ("outcome", "dialect"))
    seconds = metrics.histogram("webhook_review_seconds", "Time from a review's arrival to its answer.")
    counters = {
        (outcome, dialect): reviews.labels(outcome, dialect)
        for outcome in Outcome
        for dialect in ("", "native", "hami", "tensor-fusion")
    }

    def review(method: str, _path: str, body: bytes) -> Answer | Awaitable[Answer]:
        began = time.perf_counter()
        if method != "POST":
            return Answer(b"POST an AdmissionReview\n", 405, "text/plain")
        try:
            found = admission.review(body)
        except ValueError as error:
            _log.warning("wrong review", error=str(error))
            counters[Outcome.MALFORMED, ""].inc()
            return Answer(f"the body {error}\n".encode(), 400, "text/plain")
        return again(body, found, began) if profiles.missed else answer(found, began)

    async def again(body: bytes, found: Reviewed, began: float) -> Answer:
        """The answer once it is known whether a profile that was missed has just been made."""
        return answer(admission.review(body) if await profiles.fetch() else found, began)

    def answer(found: Reviewed, began: float) -> Answer:
        counters[found.outcome, found.dialect or ""].inc()
        _tell(found)
        seconds.observe(time.perf_counter() - began)
        return Answer(found.body)

    return review


def _tell(found: Reviewed) -> None:
    if found.outcome in (Outcome.DENIED, Outcome.MALFORMED):
        _log.info(found.outcome.value, object=found.about, dialect=found.dialect, why=found.message)
    else:
        _log.debug(found.outcome.value, object=found.about, dialect=found.dialect)
