"""The extender's two verbs over HTTP: decode, ask the state, encode. The hot path; nothing here waits but Bind."""

from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tessera.runtime.clock import Clock
from tessera.runtime.log import logger
from tessera.runtime.serve import Answer
from tessera.scheduler.binder import Poster, bind
from tessera.scheduler.facts import Facts, PodFacts, told
from tessera.scheduler.mandate import Mandate
from tessera.scheduler.meters import Meters
from tessera.scheduler.refusals import Refusals
from tessera.scheduler.state import (
    Chosen,
    Everywhere,
    NotOurs,
    Nowhere,
    Outcome,
    State,
    Unclear,
)
from tessera.scheduler.teller import Teller
from tessera.wire.kube.extender import (
    BOUND,
    decode_bind,
    decode_candidates,
    decode_filter,
    encode_error,
    encode_kept,
    encode_refused,
)

FILTER: Final = "/filter"
BIND: Final = "/bind"

_log: Final = logger("scheduler")


@dataclass(slots=True)
class Extender:
    """Answers kube-scheduler. One event loop calls it, and only one call decides at a time."""

    state: State
    facts: Facts
    mandate: Mandate
    client: Poster
    clock: Clock
    meters: Meters
    teller: Teller
    refusals: Refusals = field(default_factory=Refusals)

    async def __call__(self, method: str, path: str, body: bytes) -> Answer:
        """As :meth:`answer`, for who awaits every answer."""
        found = self.answer(method, path, body)
        return found if isinstance(found, Answer) else await found

    def answer(self, method: str, path: str, body: bytes) -> Answer | Coroutine[Any, Any, Answer]:
        """Any call; what is no call of kube-scheduler's is answered 404 or 400.

        Filter is answered at once, without the 40 us that a task costs; Bind waits for the API server.
        """
        if method != "POST" or path not in (FILTER, BIND):
            return Answer(b"POST /filter and POST /bind are answered here\n", 404, "text/plain")
        if path == BIND:
            return self._bind(body)
        try:
            return self._filter(body)
        except ValueError as error:
            return self._malformed(error)

    def _malformed(self, error: ValueError) -> Answer:
        self.meters.malformed.inc()
        return Answer(f"the body {error}\n".encode(), 400, "text/plain")

    def _filter(self, body: bytes) -> Answer:
        began = self.clock.monotonic()
        obstacle = self.mandate.obstacle()
        if obstacle is not None:
            self.meters.attempts["unready"].inc()
            return Answer(encode_error(f"tessera is {obstacle}"))
        call = decode_candidates(body)
        facts = self.state.pods.get(call.uid) or self.facts.of(decode_filter(body).pod)
        answer = self._decide(facts, call.names, self.state.filter(facts, call.names, began))
        self.meters.decision.observe(self.clock.monotonic() - began)
        return answer

    def _decide(self, facts: PodFacts, names: Sequence[str], verdict: object) -> Answer:
        attempts = self.meters.attempts
        match verdict:
            case Chosen(node):
                attempts["placed"].inc()
                return Answer(encode_kept((node,)))
            case Nowhere():
                attempts["refused"].inc()
                ledger = self.state.holdings.ledger
                reasons = self.refusals.reasons(verdict, names, ledger, self.clock.monotonic())
                self.teller.refused(verdict.ask, reasons)
                return Answer(encode_refused(reasons))
            case Everywhere(why):
                attempts["refused"].inc()
                self.teller.everywhere(facts, why)
                return Answer(encode_refused(dict.fromkeys(names, why)))
            case NotOurs():
                attempts["not_ours"].inc()
                return Answer(encode_kept(names))
            case Unclear(why):
                attempts["unclear"].inc()
                return Answer(encode_error(why))
            case _:
                raise AssertionError(f"no verdict: {verdict}")

    async def _bind(self, body: bytes) -> Answer:
        try:
            args = decode_bind(body)
        except ValueError as error:
            return self._malformed(error)
        began = self.clock.monotonic()
        obstacle = self.mandate.obstacle()
        if obstacle is not None:
            return self._unbound(args.key, args.node, "unready", f"tessera is {obstacle}")
        bindable = self.state.begin_bind(args.uid, args.key, args.node, began)
        if isinstance(bindable, str):
            return self._unbound(args.key, args.node, "lost", bindable)
        outcome, why = await bind(self.client, args, bindable.text)
        ended = self.clock.monotonic()
        self.state.end_bind(bindable, outcome, ended)
        if outcome is not Outcome.DONE:
            return self._unbound(args.key, args.node, outcome.value, f"the pod was not bound: {why}")
        self.meters.bindings["done"].inc()
        self.meters.binding.observe(ended - began)
        uuids = [charge.uuid for charge in bindable.held.placement.charges]
        facts = self.state.pods.get(args.uid)
        asked = {} if facts is None else told(facts)
        _log.info("bound", pod=args.key, uid=args.uid, node=args.node, devices=uuids, **asked)
        return Answer(BOUND)

    def _unbound(self, pod: str, node: str, outcome: str, why: str) -> Answer:
        self.meters.bindings[outcome].inc()
        _log.warning("not bound", pod=pod, node=node, outcome=outcome, why=why)
        return Answer(encode_error(why))
