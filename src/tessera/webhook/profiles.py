"""WorkloadProfiles of the cluster, for the pods that name one; a cluster without that kind has none."""

import random
from contextlib import aclosing
from typing import Any, Final

import msgspec

from tessera.runtime.clock import Clock
from tessera.runtime.kube.informer import Informer
from tessera.runtime.kube.port import ApiError, ConnectionLostError, Kind, KubeClient
from tessera.runtime.log import logger
from tessera.wire.dialects.profile import read_profile
from tessera.wire.fields import Findings
from tessera.wire.kube.objects import Meta
from tessera.wire.kube.verdict import Profile

PROFILES: Final = Kind("tensor-fusion.ai", "v1", "workloadprofiles", "WorkloadProfile")
AGAIN_SECONDS: Final = 30.0
"""How often a cluster without the kind is asked again."""
UNKNOWN_SECONDS: Final = 1.0
"""How often an API server that does not say is asked again."""
_ABSENT: Final = 404

_log: Final = logger("profiles")


class StoredProfile(msgspec.Struct, frozen=True):
    """A WorkloadProfile as the API server has it."""

    metadata: Meta
    spec: dict[str, Any] = {}


class KnownProfiles:
    """Follows the cluster's profiles. Call it for one; it answers from memory.

    A profile that was made a moment ago may not be there yet, and a pod that names it would be refused: ``missed``
    are the names that were asked for in vain, for :meth:`fetch` to look at the API server itself.
    """

    def __init__(self, client: KubeClient, *, clock: Clock, rng: random.Random) -> None:
        self.missed: set[tuple[str, str]] = set()
        self._client = client
        self._clock = clock
        self._informer: Informer[StoredProfile, StoredProfile] = Informer(
            client, PROFILES, StoredProfile, clock=clock, rng=rng
        )
        self._informer.handlers.append(self._changed)
        self._known: dict[tuple[str, str], Profile] = {}
        self._absent = False

    def __call__(self, namespace: str, name: str) -> Profile | None:
        """The profile of this name, as far as it is known."""
        found = self._known.get((namespace, name))
        if found is None:
            self.missed.add((namespace, name))
        return found

    def unready(self) -> str | None:
        """Why a pod could be refused for a profile that exists."""
        return None if self._absent or self._informer.synced.is_set() else "WorkloadProfiles were not listed yet"

    async def fetch(self) -> bool:
        """Look up what was missed; whether anything of it is there now."""
        missed, self.missed = self.missed, set()
        found = [await self._look_up(*one) for one in sorted(missed)]
        return any(found)

    async def run(self) -> None:
        """Follow the profiles, as soon as the cluster knows the kind."""
        while (exists := await self._kind_exists()) is not True:
            self._absent = exists is False
            await self._clock.sleep(AGAIN_SECONDS if self._absent else UNKNOWN_SECONDS)
        self._absent = False
        await self._informer.run()

    async def _kind_exists(self) -> bool | None:
        """Whether the cluster has the kind; ``None`` while nobody says so.

        To follow a kind that is not there would never end, and this process would never be ready.
        """
        try:
            async with aclosing(self._client.pages(PROFILES, StoredProfile)) as pages:
                await anext(pages)
        except ApiError as error:
            if error.code == _ABSENT:
                return False
            _log.warning("cannot list WorkloadProfiles", error=str(error))
            return None
        except ConnectionLostError as error:
            _log.warning("cannot list WorkloadProfiles", error=str(error))
            return None
        return True

    async def _look_up(self, namespace: str, name: str) -> bool:
        try:
            found = await self._client.get(PROFILES, name, StoredProfile, namespace=namespace)
        except ApiError as error:
            if error.code != _ABSENT:
                _log.warning("cannot read a WorkloadProfile", profile=f"{namespace}/{name}", error=str(error))
            return False
        except ConnectionLostError as error:
            _log.warning("cannot read a WorkloadProfile", profile=f"{namespace}/{name}", error=str(error))
            return False
        self._known[namespace, name] = _read(found)
        return True

    def _changed(self, old: StoredProfile | None, new: StoredProfile | None) -> None:
        if new is not None:
            self._known[new.metadata.namespace, new.metadata.name] = _read(new)
        elif old is not None:
            self._known.pop((old.metadata.namespace, old.metadata.name), None)


def _read(stored: StoredProfile) -> Profile:
    findings = Findings()
    pairs = read_profile({"spec": stored.spec}, findings)
    return Profile(pairs, tuple(findings.found))
