"""What this node is now: devices, their health, who else holds them, how limits are enforced. One value each time.

Everything that changes the answer to ``Allocate`` or what is published passes here, so that both say the same.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import tessera
from tessera.agent.allocate import NodeDevice, Offer
from tessera.agent.answer import has_cdi
from tessera.agent.cdi import spec_of, write_spec
from tessera.agent.driver import DriverFiles
from tessera.agent.fences import Fences, TierPolicy
from tessera.agent.health import Fault, FaultBook, decode_fatal, encode_fatal, why_unfit
from tessera.agent.inventory import DRIVER, HOOK, Tier, node_status, vanished
from tessera.agent.layout import Layout
from tessera.agent.machine import Machine, vendor_of
from tessera.agent.payload import Payload, install, unsound
from tessera.agent.store import write_whole
from tessera.agent.upgrade import Upgrade
from tessera.core.device import Device
from tessera.core.errors import UnavailableError
from tessera.runtime.clock import Clock
from tessera.runtime.log import logger
from tessera.runtime.proc import boot_id
from tessera.wire.kube.inventory import GPUNodeStatus

AUTO, ALWAYS, NEVER = "auto", "always", "never"
"""Whether the container runtime has CDI: ask the node's status, or take it from the flag."""

_log: Final = logger("agent.node")


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """What a person decided about this node; ``without_cdi`` allows shares that no gate checks."""

    cdi: str = AUTO
    without_cdi: bool = False
    cdi_directory: Path = Path("/var/run/cdi")
    gate_socket: Path = Path("/run/tessera/gate.sock")
    library: Path = Path("libtessera.so")
    gate: Path = Path("tessera-gate")


class NodeState:
    """See the module. ``changed`` is called after whatever may change what is published."""

    def __init__(
        self,
        machine: Machine,
        fences: Fences,
        layout: Layout,
        book: FaultBook,
        options: NodeOptions,
        clock: Clock,
    ) -> None:
        self._machine, self._layout, self._book, self._options, self._clock = machine, layout, book, options, clock
        self._fences = fences
        self._upgrade = Upgrade()
        self._known: dict[str, Device] = {}
        self._lost: dict[str, tuple[Device, str]] = {}
        self._foreign: Mapping[str, str] = {}
        self._fit: dict[str, str] = {}
        self._runtime: str | None = None
        self._driver = self._problem = ""
        self._fault: UnavailableError | None = None
        self.files = DriverFiles(())
        self.payload: Payload | None = None
        self.changed: Callable[[], None] = lambda: None

    # What is learnt ------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Look at the machine, install what containers get, and bring the CDI spec up to date."""
        found = self._machine.look()
        self._lost = vanished(self._known.values(), found.inventory.devices, found.problem)
        self._known |= {device.uuid: device for device in found.inventory.devices}
        if found.inventory.devices:
            self.files, self._driver = found.files, found.inventory.driver
            self._fences.look(device.uuid for device in found.inventory.devices)
        if found.problem != self._problem:
            _log.warning("driver", problem=found.problem or "none any more")
            self._problem = found.problem
        self._prepare()
        self.changed()

    def _prepare(self) -> None:
        options, before = self._options, self._fault
        try:
            if self.payload is None or unsound(self.payload) is not None:
                self.payload = None
                self.payload = install(self._layout, options.library, options.gate)
            if self.uses_cdi and self.files.devices:
                spec = spec_of(self.files, self.payload.gate, options.gate_socket)
                if write_spec(options.cdi_directory, spec):
                    _log.info("wrote CDI spec", directory=str(options.cdi_directory), devices=len(spec.devices))
            self._fault = None
        except UnavailableError as error:
            self._fault = error
            if str(error) != str(before):
                _log.error("cannot hand out shares", why=str(error))

    def learn_runtime(self, version: str) -> None:
        """What the node's status says of its container runtime."""
        if version != self._runtime:
            self._runtime = version
            self._prepare()
            self.changed()

    def learn_upgrade(self, upgrade: Upgrade) -> None:
        """That the driver is being replaced, or no more: it is let go of, or opened again, at once."""
        if upgrade != self._upgrade:
            self._upgrade = upgrade
            _log.info("driver upgrade", state=upgrade.why or "over", let_go=upgrade.lets_go)
            self._machine.pause(upgrade.why if upgrade.lets_go else "")
            self.look()

    @property
    def is_stale(self) -> bool:
        """Whether only a new process can speak with the driver."""
        return self._machine.is_stale

    def learn_foreign(self, users: Mapping[str, str]) -> None:
        """Who holds devices through other plugins."""
        if users != self._foreign:
            self._foreign = users
            _log.info("devices of others", devices=dict(users))
            self.changed()

    def recall_faults(self, *, forget: bool) -> None:
        """Take over the fatal faults of earlier agents of this boot, or forget them."""
        path = self._layout.faults
        if forget:
            path.unlink(missing_ok=True)
        elif path.exists():
            for uuid, code in decode_fatal(path.read_bytes(), boot_id()):
                self._book.report(uuid, code, self._clock.monotonic())

    def take_faults(self) -> tuple[Fault, ...]:
        """The faults that devices reported since the last call; forgets those that have been quiet."""
        now = self._clock.monotonic()
        before = self._book.fatal()
        faults = tuple(self._book.report(uuid, code, now) for uuid, code in self._machine.take_faults())
        if self._book.fatal() != before:
            write_whole(self._layout.faults, encode_fatal(boot_id(), self._book.fatal()))
        reasons = self._book.reasons(now)
        if reasons != self._fit:
            self._fit = reasons
            self.changed()
        return faults

    # What follows --------------------------------------------------------------------------------------------

    @property
    def uses_cdi(self) -> bool:
        """Whether containers get their devices by CDI. A runtime that nobody knows gets the benefit of the doubt:
        one that skips CDI devices in silence starts containers without a device.
        """
        if self._options.cdi != AUTO:
            return self._options.cdi == ALWAYS
        return self._runtime is None or has_cdi(self._runtime) is not False

    @property
    def tier(self) -> Tier:
        """How memory is limited on this node."""
        if self._fault is not None:
            return Tier("report", gate=False, problem=self._fault.what, remedy=self._fault.remedy)
        if self.uses_cdi:
            return self._fenced
        runtime = self._runtime or "the container runtime"
        if self._options.without_cdi:
            return Tier("unverified", gate=False, problem=f"{runtime} has no CDI: no gate checks what starts")
        what = f"{runtime} has no CDI, so no gate can check what starts"
        remedy = "upgrade it, or accept that with --without-cdi=allow"
        return Tier("report", gate=False, problem=what, remedy=remedy)

    @property
    def _fenced(self) -> Tier:
        """The tier of a node with a gate: as good as that of its weakest device."""
        if self._known and not self._fences.lacking(self._known):
            return DRIVER
        problem = self._fences.problem
        if self._known and self._fences.policy is TierPolicy.DRIVER:
            what = problem.what if problem else "nothing is known yet of what limits its devices"
            return Tier("report", gate=True, problem=what, remedy=problem.remedy if problem else "wait for it")
        if problem is not None and problem.is_ours:
            return Tier("hook", gate=True, problem=problem.what, remedy=problem.remedy)
        return HOOK

    @property
    def is_ready(self) -> bool:
        """Whether shares can be handed out at all."""
        return self.refusal is None

    @property
    def refusal(self) -> UnavailableError | None:
        """Why nothing can be handed out now."""
        if self._upgrade.why:
            return UnavailableError(self._upgrade.why, "wait until it is through, or place the pod elsewhere")
        tier = self.tier
        return UnavailableError(tier.problem, tier.remedy) if tier.isolation == "report" else None

    def devices(self) -> tuple[Device, ...]:
        """All devices, those that are lost included and not healthy."""
        return tuple(self._lost[uuid][0] if uuid in self._lost else d for uuid, d in self._known.items())

    def unfit(self) -> dict[str, str]:
        """Why devices are not healthy, by uuid."""
        lost = {uuid: why for uuid, (_, why) in self._lost.items()}
        reasons = {uuid: why_unfit(uuid, self._fit, lost) for uuid in self._known}
        return {uuid: why for uuid, why in reasons.items() if why}

    def status(self) -> GPUNodeStatus | None:
        """What is published; ``None`` until the container runtime is known."""
        if self._options.cdi == AUTO and self._runtime is None:
            return None
        return node_status(
            self.devices(),
            self.unfit(),
            self._foreign,
            self.tier,
            driver=self._driver,
            agent=tessera.__version__,
            message=self._problem or self._upgrade.why,
        )

    def offer(self) -> Offer:
        """What ``Allocate`` may give now."""
        unfit = self.unfit()
        return Offer(
            devices={d.uuid: NodeDevice(d, vendor_of(d).node, unfit.get(d.uuid, "")) for d in self.devices()},
            payload=self.payload,
            refusal=self.refusal,
            plain=None if self.uses_cdi else self.files.plain,
        )

    def known_nodes(self) -> frozenset[str]:
        """Device nodes that single devices have."""
        return self.files.known_nodes()

    def nodes_of(self, uuids: Iterable[str]) -> frozenset[str]:
        """Device nodes of these devices alone, without those that all share."""
        wanted = set(uuids)
        return frozenset(node for d in self.files.devices if d.uuid in wanted for node in d.nodes)
