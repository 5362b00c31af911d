"""The webhook's certificate: kept in one Secret by all replicas, trusted by the API server, renewed in time.

Every replica looks at the Secret and at the webhook configurations, plans (:mod:`tessera.runtime.tls`), and writes
under optimistic locking: who comes second looks again. No replica is special, and none waits for another.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from tessera.runtime.clock import Clock
from tessera.runtime.kube.port import (
    MUTATING_WEBHOOKS,
    SECRETS,
    ApiError,
    ConnectionLostError,
    Kind,
    KubeClient,
    PatchType,
)
from tessera.runtime.log import logger
from tessera.runtime.tls import (
    Lifetimes,
    Material,
    NewAuthority,
    Publish,
    ReloadingContext,
    Seen,
    Step,
    Wait,
    carry_out,
    expiry,
    plan,
    read_material,
    same_bundle,
)
from tessera.wire.kube.objects import Meta

VALIDATING_WEBHOOKS: Final = Kind(
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    namespaced=False,
)
CONFIGURATIONS: Final = (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS)
LOOK_SECONDS: Final = 10.0
"""How often a replica looks, at least: what another one wrote is served after so long."""
_RETRY_SECONDS: Final = 5.0
_MOST_STEPS: Final = 20
"""Steps of one round; a plan takes four at most, the others are for replicas that write at the same time."""
_CONFLICT: Final = 409
_TEST_FAILED: Final = 422
_ABSENT: Final = 404

USUAL: Final = Lifetimes()

Repaired = Callable[[Meta, str], None]
"""Told of which Secret the authority had to be made anew, and why."""

_log: Final = logger("certificate")


class _Secret(msgspec.Struct, frozen=True):
    metadata: Meta
    data: dict[str, bytes] | None = None


class _ClientConfig(msgspec.Struct, frozen=True, rename={"ca_bundle": "caBundle"}):
    ca_bundle: bytes | None = None


class _Webhook(msgspec.Struct, frozen=True, rename={"client_config": "clientConfig"}):
    name: str
    client_config: _ClientConfig = _ClientConfig()


class _Configuration(msgspec.Struct, frozen=True):
    metadata: Meta
    webhooks: tuple[_Webhook, ...] | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where the certificate lives: the Secret, and the name of the webhook configurations that must trust it."""

    namespace: str
    secret: str
    configuration: str


@dataclass(frozen=True, slots=True)
class _World:
    """What one look found. ``configurations`` are those that exist."""

    secret: _Secret | None
    configurations: tuple[tuple[Kind, _Configuration], ...]

    @property
    def material(self) -> Material:
        return read_material((self.secret.data if self.secret else None) or {})

    def published(self) -> bytes:
        """The bundle that all webhooks trust; empty where they differ, so that it is published again."""
        bundles = [
            webhook.client_config.ca_bundle or b""
            for _, configuration in self.configurations
            for webhook in configuration.webhooks or ()
        ]
        first = bundles[0] if bundles else b""
        return first if all(same_bundle(first, bundle) for bundle in bundles) else b""


class CertificateKeeper:
    """Keeps ``context`` serving a certificate that the API server trusts. Run :meth:`run`; ask :meth:`unready`.

    ``names`` are what the API server calls the webhook: DNS names or addresses.
    """

    def __init__(  # noqa: PLR0913 - everything that it touches is passed in
        self,
        client: KubeClient,
        place: Place,
        names: Sequence[str],
        context: ReloadingContext,
        *,
        lifetimes: Lifetimes = USUAL,
        clock: Clock,
        repaired: Repaired = lambda _secret, _why: None,
    ) -> None:
        self._client = client
        self._place = place
        self._names = tuple(names)
        self._context = context
        self._lifetimes = lifetimes
        self._clock = clock
        self._repaired = repaired
        self._look = min(LOOK_SECONDS, lifetimes.leaf / 12)
        self._settled_since: tuple[float, bytes] | None = None
        self._why_not = "the certificate was not looked at yet"

    def unready(self) -> str | None:
        """Why the API server could not talk to this replica; ``None`` while it can."""
        until = self.expires()
        if until is not None and until <= self._clock.wall():
            return "the certificate expired"
        return self._why_not or None

    def expires(self) -> float | None:
        """Wall time at which the certificate that is served ends."""
        return expiry(self._context.loaded.certificate) if self._context.loaded else None

    async def run(self) -> None:
        """Look, act, sleep; for ever. A failing API server costs nothing while the certificate lasts."""
        while True:
            try:
                pause = await self.attend()
            except (ApiError, ConnectionLostError) as error:
                _log.warning("cannot look after the certificate", error=str(error))
                pause = min(_RETRY_SECONDS, self._look)
            await self._clock.sleep(pause)

    async def attend(self) -> float:
        """Bring everything in order, and return the seconds until something may be due."""
        for _ in range(_MOST_STEPS):
            world = await self._observe()
            step = self._plan(world)
            if isinstance(step, Wait):
                self._serve(world)
                return min(step.seconds, self._look)
            await self._act(step, world)
        return self._look

    # observe

    async def _observe(self) -> _World:
        secret = await self._find(SECRETS, self._place.secret, _Secret, self._place.namespace)
        found = [
            (kind, await self._find(kind, self._place.configuration, _Configuration)) for kind in CONFIGURATIONS
        ]
        return _World(secret, tuple((kind, one) for kind, one in found if one is not None))

    async def _find(self, kind: Kind, name: str, as_: type[Any], namespace: str = "") -> Any:
        try:
            return await self._client.get(kind, name, as_, namespace=namespace)
        except ApiError as error:
            if error.code == _ABSENT:
                return None
            raise

    # decide

    def _plan(self, world: _World) -> Step:
        material, published = world.material, world.published()
        if not world.configurations:
            published = material.bundle()  # nobody to convince: renew the leaf all the same
        now = self._clock.monotonic()
        trusted = bool(world.configurations) and same_bundle(published, material.bundle())
        if not trusted:
            self._settled_since = None
        elif self._settled_since is None or not same_bundle(self._settled_since[1], published):
            self._settled_since = (now, published)
        settled = now - self._settled_since[0] if self._settled_since else 0.0
        return plan(Seen(self._clock.wall(), material, published, settled), self._names, self._lifetimes)

    # act

    def _serve(self, world: _World) -> None:
        leaf = world.material.leaf
        if leaf is not None and self._context.load(leaf):
            _log.info("certificate served", expires=self.expires())
        missing = [kind.kind for kind in CONFIGURATIONS if kind not in dict(world.configurations)]
        named = f"{' and '.join(missing)} {self._place.configuration}"
        self._why_not = f"{named} is not there, so that nobody asks" if missing else ""

    async def _act(self, step: Step, world: _World) -> None:
        try:
            if isinstance(step, Publish):
                for kind, configuration in world.configurations:
                    await self._publish(kind, configuration, step.bundle)
            else:
                await self._write(step, world)
        except ApiError as error:
            if error.code != _CONFLICT and not (error.code == _TEST_FAILED and isinstance(step, Publish)):
                raise
            _log.info("another replica was first", step=type(step).__name__)

    async def _publish(self, kind: Kind, configuration: _Configuration, bundle: bytes) -> None:
        """Put ``bundle`` on every webhook, unless the configuration changed since it was looked at."""
        version = configuration.metadata.resource_version
        patch: list[dict[str, object]] = [{"op": "test", "path": "/metadata/resourceVersion", "value": version}]
        for place, webhook in enumerate(configuration.webhooks or ()):
            if not same_bundle(webhook.client_config.ca_bundle or b"", bundle):
                path = f"/webhooks/{place}/clientConfig/caBundle"
                patch.append({"op": "add", "path": path, "value": bundle})
        if len(patch) > 1:
            await self._client.patch(
                kind, configuration.metadata.name, patch, _Configuration, type_=PatchType.JSON
            )
            _log.info("authorities published", kind=kind.kind, webhooks=len(patch) - 1)

    async def _write(self, step: Step, world: _World) -> None:
        material = carry_out(step, world.material, self._names, self._lifetimes, self._clock.wall())
        if world.secret is None:
            await self._create(material.data())
        else:
            await self._replace(world.secret, material.data())
            if isinstance(step, NewAuthority) and world.secret.data:
                self._repaired(world.secret.metadata, step.why)
        _log.info("certificate changed", step=type(step).__name__, why=getattr(step, "why", ""))

    async def _create(self, data: dict[str, bytes]) -> None:
        body = {"metadata": {"name": self._place.secret}, "type": "Opaque", "data": data}
        await self._client.create(SECRETS, body, _Secret, namespace=self._place.namespace)

    async def _replace(self, secret: _Secret, data: dict[str, bytes]) -> None:
        """Write ``data`` over what is there; keys that are not ours go."""
        gone = dict.fromkeys((secret.data or {}).keys() - data.keys())
        metadata = {"resourceVersion": secret.metadata.resource_version, "uid": secret.metadata.uid}
        body = {"metadata": metadata, "data": {**gone, **data}}
        await self._client.patch(SECRETS, secret.metadata.name, body, _Secret, namespace=self._place.namespace)
