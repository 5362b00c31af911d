"""One review from body to answer: pods are changed or refused, templates are only told about.

Deterministic but for the ticket source, and without any effect but that source's advance: a dry run asks the same
and gets the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Final

import msgspec

from tessera.core.errors import Problem
from tessera.core.request import Dialect
from tessera.wire.fields import Findings
from tessera.wire.kube.admission import (
    Asked,
    Operation,
    Review,
    decode_new_pod,
    decode_review,
    encode_allowed,
    encode_denied,
    render_denial,
    render_warnings,
)
from tessera.wire.kube.form import Form, Reader
from tessera.wire.kube.jsonpatch import encode_patch
from tessera.wire.kube.mutation import NextTicket, mutate
from tessera.wire.kube.names import DECISIONS, MANAGED
from tessera.wire.kube.podview import MetaView, PodView, decode_pod, decode_template, forgeable, tickets_in
from tessera.wire.kube.verdict import Options, Profile, Verdict, profile_name
from tessera.wire.workloads import KINDS

Profiles = Callable[[str, str], Profile | None]
"""The WorkloadProfile of a namespace and name."""


class Outcome(StrEnum):
    """What became of a review."""

    PATCHED = "patched"
    UNCHANGED = "unchanged"
    DENIED = "denied"
    TOLD = "told"
    """A template: let pass, with warnings or without."""
    MALFORMED = "malformed"


class Answer(msgspec.Struct, frozen=True):
    """The body to send, and what it says; ``about`` is ``Kind/namespace/name`` for a log."""

    body: bytes
    outcome: Outcome
    dialect: Dialect | None = None
    about: str = ""
    message: str = ""


_RECORDS: Final = "is written by Tessera only and cannot be changed"


class Admission:
    """Answers reviews. Remembers what equal content came to; holds no other state."""

    def __init__(self, options: Options, next_ticket: NextTicket, profiles: Profiles) -> None:
        self._options = options
        self._reader = Reader(options)
        self._next_ticket = next_ticket
        self._profiles = profiles

    def review(self, body: bytes) -> Answer:
        """The answer to a request's body. Raises ``ValueError`` where that is no AdmissionReview."""
        found = decode_new_pod(body) or decode_review(body)
        try:
            return self._look(found) if isinstance(found, Review) else self._admit(*found)
        except ValueError as error:
            asked, message = found if isinstance(found, Review) else found[0], f"the object {error}"
            return Answer(encode_denied(asked.uid, message), Outcome.MALFORMED, None, _about(asked, None), message)

    def _look(self, asked: Review) -> Answer:
        """The answer about anything but a sound new pod. Raises ``ValueError`` for what cannot be read."""
        if asked.kind.kind in KINDS and asked.kind.kind != "Pod":
            return self._tell(asked)
        if asked.kind.kind == "Pod" and not asked.sub_resource:
            if asked.operation is Operation.CREATE:
                return self._admit(asked, decode_pod(asked.object))
            if asked.operation is Operation.UPDATE:
                return _guard(asked, decode_pod(asked.old_object), decode_pod(asked.object))
        return Answer(encode_allowed(asked.uid, None, ()), Outcome.UNCHANGED, about=_about(asked, None))

    def _admit(self, asked: Asked, pod: PodView) -> Answer:
        verdict, form = self._read(asked, pod)
        about = _about(asked, pod)
        if verdict.errors:
            return _denied(asked, verdict.errors, verdict, about)
        patch, warnings = self._patch(pod, verdict, form)
        outcome = Outcome.UNCHANGED if patch is None else Outcome.PATCHED
        return Answer(encode_allowed(asked.uid, patch, warnings), outcome, verdict.dialect, about)

    def _patch(self, pod: PodView, verdict: Verdict, form: Form | None) -> tuple[bytes | None, tuple[str, ...]]:
        """The patch, and what to warn of; a form says the same as working it out."""
        if form is not None:
            return form.fill(self._next_ticket), form.warnings
        operations, findings = mutate(pod, verdict, self._next_ticket, self._options)
        return encode_patch(operations), render_warnings((*verdict.warnings, *findings.found))

    def _tell(self, asked: Review) -> Answer:
        """Warnings for everything that would be refused or odd on the pods of a template. Never refuses."""
        try:
            template = decode_template(asked.object)
        except ValueError:  # not ours to judge: its pods are looked at one by one
            return Answer(encode_allowed(asked.uid, None, ()), Outcome.TOLD, about=_about(asked, None))
        verdict, _ = self._read(asked, template)
        problems = (*verdict.errors, *verdict.warnings, *_forged(template).found)
        told = (replace(problem, object="its pods") for problem in problems)
        body = encode_allowed(asked.uid, None, render_warnings(told))
        return Answer(body, Outcome.TOLD, verdict.dialect, _about(asked, None))

    def _read(self, asked: Asked, pod: PodView) -> tuple[Verdict, Form | None]:
        name = profile_name(pod)
        return self._reader.read(pod, None if name is None else self._profiles(asked.namespace, name))


def _guard(asked: Review, before: PodView, after: PodView) -> Answer:
    """Refuse what changes a record of ours on a pod that exists."""
    about = _about(asked, after)
    findings = Findings()
    old, new = before.metadata or MetaView(), after.metadata or MetaView()
    for key in DECISIONS:
        if (old.annotations or {}).get(key) != (new.annotations or {}).get(key):
            findings.error(f"annotations[{key}]", "", _RECORDS, "leave it as it is, or create the pod again")
    if (old.labels or {}).get(MANAGED[0]) != (new.labels or {}).get(MANAGED[0]):
        findings.error(f"labels[{MANAGED[0]}]", "", _RECORDS, "leave it as it is, or create the pod again")
    if findings.found:
        return _denied(asked, findings.found, Verdict(), about)
    return Answer(encode_allowed(asked.uid, None, ()), Outcome.UNCHANGED, about=about)


def _denied(asked: Asked, problems: Sequence[Problem], verdict: Verdict, about: str) -> Answer:
    message = render_denial(problems)
    body = encode_denied(asked.uid, message, render_warnings(verdict.warnings))
    return Answer(body, Outcome.DENIED, verdict.dialect, about, message)


def _forged(template: PodView) -> Findings:
    """What stands in a template and will be taken away from each of its pods."""
    findings = Findings()
    meta, spec = template.metadata, template.spec
    for key in (meta.annotations if meta else None) or {}:
        if forgeable(key):
            findings.warn(f"annotations[{key}]", "", "is written by Tessera only", "leave it out")
    for _, _, container in spec.located() if spec else ():
        resources = container.resources
        for name in tickets_in(resources.limits if resources else None):
            where = f"containers[{container.name}].resources.limits[{name}]"
            message = "is written by Tessera only; pods that all bring the same ticket start one after the other"
            findings.warn(where, "", message, "leave it out")
    return findings


def _about(asked: Asked, pod: PodView | None) -> str:
    """``Kind/namespace/name``; a pod that has no name yet is known by what its name will begin with."""
    meta = pod.metadata if pod else None
    made = f"{meta.generate_name}*" if meta and meta.generate_name else ""
    name = asked.name or (meta.name if meta and meta.name else made)
    return f"{asked.kind.kind}/{asked.namespace}/{name}"
