"""The gate's other side: a socket that answers whether a container may start.

The question comes from a program that the container runtime started as root; the socket is root's alone. It may be
asked twice for one container. The protocol stands in ``limiter/gate/README.md``.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from tessera.agent.cgroups import placement_of
from tessera.agent.grant import ContainerGrant
from tessera.agent.store import ShareStore, StoredShare, read_region
from tessera.agent.verdict import Expected, Observed, refusal_of
from tessera.core.errors import UnavailableError
from tessera.runtime.log import logger
from tessera.runtime.proc import PROC
from tessera.wire.kubelet.oci import Identity, OciState, decode_config, decode_state, identity_of

GREETING: Final = b"tessera-gate 1 "
MOST_BYTES: Final = 1 << 20
READ_SECONDS: Final = 4.0
_CONFIG: Final = "config.json"

_log: Final = logger("agent.gate")

Expecting = Callable[[ContainerGrant], tuple[Expected, str]]
"""What a container with a grant must see, and what is wrong with the limiter that it would get, if anything."""
Allocated = Callable[[str, str], Mapping[str, int] | None]
"""What a pod's allocation gives a container (uid, name) where we know the pod: uuid to memory limit in MiB."""
Fencing = Callable[[StoredShare, int, str], str]
"""Put up what else limits a container (share, its process, its id) before it starts; why not, or empty."""

Bundles = Callable[[OciState], bytes]
"""A container's ``config.json``. Raises ``OSError``."""


def bundles_below(root: Path) -> Bundles:
    """Bundles of a node whose root directory we see at ``root``, or else through the process that is to start.

    That process has the node's root until its container's is put in its place, which comes after the gate.
    Source: OCI runtime specification 1.2, "Lifecycle": createRuntime hooks come before ``pivot_root``.
    """

    def read(state: OciState) -> bytes:
        inside = Path(state.bundle.lstrip("/")) / _CONFIG
        try:
            return (root / inside).read_bytes()
        except FileNotFoundError:
            return (PROC / str(state.pid) / "root" / inside).read_bytes()

    return read


class Gatekeeper:
    """Judges one container at a time from disk and from what the pod watch knows; asks only the driver."""

    def __init__(
        self,
        store: ShareStore,
        bundles: Bundles,
        expecting: Expecting,
        allocated: Allocated,
        device_nodes: Callable[[], frozenset[str]],
        fencing: Fencing,
    ) -> None:
        self._store, self._bundles, self._expecting = store, bundles, expecting
        self._allocated, self._device_nodes, self._fencing = allocated, device_nodes, fencing
        self.answers: dict[str, int] = {"ok": 0, "no": 0}
        self.seconds: Callable[[float], None] = lambda _: None
        """Told of each answer's duration."""

    def judge(self, state: OciState) -> str:
        """Why the container may not start; empty where it may, and then it is noted as gated."""
        began = time.perf_counter()
        who = identity_of(state.annotations)
        why = self._judge(state, who)
        self.answers["no" if why else "ok"] += 1
        took = time.perf_counter() - began
        self.seconds(took)
        fields = {"pod": who.key, "container": who.container} if who else {}
        if why:
            _log.warning("start refused", id=state.id, reason=why, **fields)
        else:
            _log.info("start allowed", id=state.id, milliseconds=round(took * 1000, 2), **fields)
        return why

    def _judge(self, state: OciState, who: Identity | None) -> str:
        if who is None:
            return f"tessera: container {state.id} is not started: its runtime does not say which pod it is of"
        try:
            config = decode_config(self._bundles(state))
            share = self._store.find(who.uid, who.container)
        except (OSError, ValueError) as error:
            return f"tessera: container {who.container} of pod {who.key} is not started: {state.bundle} {error}"
        if share is None:
            return refusal_of(who, config, None, Observed("", owners=self._owners()))
        expected, library = self._expecting(share.grant)
        seen = Observed(
            region=read_region(share.region),
            library=library,
            allocated=self._allocated(who.uid, who.container),
            owners=None,
            device_nodes=self._device_nodes(),
        )
        why = refusal_of(who, config, expected, seen)
        if why:
            # Whose share it has is only looked up for the message: most containers are let in.
            owners = Observed(seen.region, seen.library, seen.allocated, self._owners(), seen.device_nodes)
            return refusal_of(who, config, expected, owners)
        return _unseen(state, who) or self._fencing(share, state.pid, state.id) or self._admit(share, state.id)

    def _admit(self, share: StoredShare, container_id: str) -> str:
        try:
            self._store.admit(share, container_id)
        except OSError as error:
            return f"tessera: {share.grant.title} is not started: its share cannot be written: {error.strerror}"
        return ""

    def _owners(self) -> dict[str, str]:
        return {str(share.region): share.grant.title for share in self._store.shares()}


def _unseen(state: OciState, who: Identity) -> str:
    """Why we could not watch the container: its process is hidden from us or another pod's; empty where we can."""
    title = f"tessera: container {who.container} of pod {who.key} is not started"
    if not (PROC / str(state.pid)).exists():
        return f"{title}: the agent does not see its process {state.pid}; give the agent the node's PID namespace"
    place = placement_of(state.pid)
    if place is not None and place.uid != who.uid:
        return f"{title}: its process {state.pid} is in the cgroup of the pod with uid {place.uid}"
    return ""


async def serve_gate(path: Path, judge: Callable[[OciState], str]) -> asyncio.Server:
    """Listen on the gate's socket. Raises :class:`UnavailableError`."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, TimeoutError):
            why = await asyncio.wait_for(_ask(reader, judge), READ_SECONDS)
            writer.write(b"ok\n" if not why else b"no " + " ".join(why.split()).encode() + b"\n")
            await writer.drain()
        writer.close()

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(answer, path=str(path), limit=MOST_BYTES, backlog=512)
        path.chmod(0o600)
    except OSError as error:
        what = f"the gate's socket {path} cannot be opened: {error.strerror}"
        raise UnavailableError(what, "run the agent as root, or name another path with --gate-socket") from error
    return server


async def _ask(reader: asyncio.StreamReader, judge: Callable[[OciState], str]) -> str:
    """Read one question; why not, or empty."""
    try:
        line = await reader.readline()
        length = int(line.removeprefix(GREETING)) if line.startswith(GREETING) else -1
        if not 0 < length <= MOST_BYTES:
            return "tessera: the gate and the agent of this node are of different versions; restart the agent"
        state = decode_state(await reader.readexactly(length))
    except asyncio.IncompleteReadError:
        return "tessera: the gate's question was cut short; the container is not started"
    except ValueError as error:
        return f"tessera: what the gate sent {error}; the container is not started"
    return judge(state)
