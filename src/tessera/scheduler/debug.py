"""What the scheduler holds, for people who look for a fault: JSON, for those whom Kubernetes lets read it."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from aiohttp import web

from tessera.allocator.suggest import suggest
from tessera.policy.keeping import NOT_KEPT
from tessera.policy.prices import FINE
from tessera.runtime.clock import Clock
from tessera.runtime.kube.access import Access, guarded
from tessera.scheduler.asks import Ask
from tessera.scheduler.holdings import Held
from tessera.scheduler.refusals import Refusals, grouped
from tessera.scheduler.state import Nowhere, State
from tessera.scheduler.teller import change_of, freest

PREFIX: Final = "/debug"

KINDS_SHOWN: Final = 20
RESTS_SHOWN: Final = range(0, 1001, 50)
"""Milli left on a device."""


def routes(state: State, refusals: Refusals, access: Access, clock: Clock) -> list[web.RouteDef]:
    """``/debug/`` with ``ledger``, ``reservations``, ``tickets``, ``policy``, ``explain?pod=NAMESPACE/NAME``."""

    async def ledger(_: web.Request) -> web.Response:
        return _json(ledger_rows(state))

    async def reservations(_: web.Request) -> web.Response:
        now = clock.monotonic()
        return _json([_held(held, now) for held in state.holdings.open().values()])

    async def tickets(_: web.Request) -> web.Response:
        return _json(state.holdings.waiting.rows())

    async def policy(_: web.Request) -> web.Response:
        return _json(expectations(state))

    async def explain(request: web.Request) -> web.Response:
        key = request.query.get("pod", "")
        facts = next((facts for facts in state.pods.values() if facts.key == key), None)
        if facts is None:
            return web.Response(status=404, text=f"no pod {key!r} is known that asks for devices\n")
        return _json(explained(state, refusals, facts.uid, clock.monotonic()))

    handlers: dict[str, Callable[[web.Request], Awaitable[web.StreamResponse]]] = {
        "ledger": ledger, "reservations": reservations, "tickets": tickets, "policy": policy,
        "explain": explain,
    }  # fmt: skip
    return [web.get(f"{PREFIX}/{name}", guarded(access, handler)) for name, handler in handlers.items()]


def ledger_rows(state: State) -> list[dict[str, Any]]:
    """Every device with what is booked on it and by whom."""
    fleet, usage = state.fleet, state.view().usage
    holders: dict[str, list[str]] = {}
    asides = (placement for node in state.foreign for placement in state.holdings.aside(node))
    for placement in (*(held.placement for _, held in state.holdings.items()), *asides):
        for charge in placement.charges:
            holders.setdefault(charge.uuid, []).append(placement.pod_key)
    return [
        {
            "node": fleet.node_names[node],
            "device": device.uuid,
            "model": device.model,
            "healthy": device.healthy,
            "memoryMib": {"total": device.memory_mib, "booked": memory},
            "computeMilli": {"total": int(device.compute_milli), "booked": compute},
            "slots": {"total": device.slots, "booked": slots},
            "exclusive": bool(exclusive),
            "pods": sorted(holders.get(device.uuid, ())),
        }
        for device, node, memory, compute, slots, exclusive in zip(
            fleet.devices,
            fleet.node_of.tolist(),
            usage.memory.tolist(),
            usage.compute.tolist(),
            usage.slots.tolist(),
            usage.exclusive.tolist(),
            strict=True,
        )
    ]


def expectations(state: State) -> dict[str, Any]:
    """What the policy expects to come, and what it holds scarce for that."""
    outlook, fleet = state.holdings.index.outlook, state.fleet
    total = max(sum(count for _, count in outlook.kinds), 1)
    often = sorted(outlook.kinds, key=lambda kind: -kind[1])[:KINDS_SHOWN]
    return {
        "policy": {"node": state.policy.node, "device": state.policy.device},
        "podsSeen": state.foresight.workload.seen,
        "kinds": [
            {
                "share": round(count / total, 4),
                "cpuMilli": kind.cpu_milli,
                "devices": kind.count,
                "milli": kind.milli,
                "models": list(kind.models),
            }
            for kind, count in often
        ],
        "worthOfRest": {str(rest): int(outlook.worth[rest]) // FINE for rest in RESTS_SHOWN},
        "scarceModels": {m: int(p) / FINE for m, p in zip(fleet.models, outlook.price, strict=False) if p},
        "keptIdle": [name for name, kept in zip(fleet.node_names, outlook.kept, strict=True) if kept != NOT_KEPT],
    }


def explained(state: State, refusals: Refusals, uid: str, now: float) -> dict[str, Any]:
    """Where a pod is, or why it is nowhere, and what would help."""
    facts = state.pods[uid]
    held = state.holdings.get(uid)
    found: dict[str, Any] = {"pod": facts.key, "uid": uid, "node": facts.node, "request": facts.request}
    if held is not None:
        return found | {"held": _held(held, now)}
    if uid in state.foreign.get(facts.node, {}):
        return found | {"foreign": [p.pod_key for p in state.holdings.aside(facts.node)]}
    ask = state.requests.ask(facts)
    if not isinstance(ask, Ask):
        return found | {"refused": ask or "the pod has no request: Tessera's webhook did not admit it"}
    names = state.fleet.node_names
    barred = state.barred(facts)
    reasons = refusals.reasons(Nowhere(ask, barred), names, state.holdings.ledger, now)
    able = [name for name in names if name not in barred]
    change = change_of(suggest(freest(state.view(), able), ask.pod)).strip()
    return found | {"reasons": dict(grouped(reasons.values())), "change": change}


def _held(held: Held, now: float) -> dict[str, Any]:
    return {
        "pod": held.placement.pod_key,
        "uid": held.placement.pod_uid,
        "node": held.node,
        "phase": held.phase.value,
        "devices": [charge.uuid for charge in held.placement.charges],
        "tickets": dict(held.tickets),
        "endsInSeconds": None if held.until is None else round(held.until - now, 1),
    }


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
