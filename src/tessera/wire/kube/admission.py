"""AdmissionReview v1: what the API server asks of a webhook, and the answer, byte for byte.

Only what is looked at is decoded. A new pod, which is what is asked about a thousand times a second, is read in
one pass; any other object stays as its bytes until somebody knows what it is.
Source: Kubernetes admission.k8s.io/v1 types.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from tessera.core.errors import Problem
from tessera.wire.kube.podview import PodView

API_VERSION: Final = "admission.k8s.io/v1"

LONGEST_WARNING: Final = 256
"""Bytes of one warning; the API server cuts what is longer, in mid-word."""
_ALL_WARNINGS: Final = 4096
"""Bytes of all warnings of one answer; the API server cuts each to 120 past this. Source: its warning recorder."""
_LONGEST_MESSAGE: Final = 4096
"""Bytes of a denial: what a person reads and an event keeps."""
_MORE: Final = 40
"""Bytes kept for the line that says how many were left out."""
_INVALID: Final = 422


class Operation(StrEnum):
    """What is being done to the object."""

    CREATE = "CREATE"
    UPDATE = "UPDATE"
    DELETE = "DELETE"
    CONNECT = "CONNECT"


class GroupKind(msgspec.Struct, frozen=True):
    """What the object is."""

    group: str = ""
    version: str = ""
    kind: str = ""


class Asked(msgspec.Struct, frozen=True, rename="camel"):
    """The question. ``namespace`` counts, not the object's own, which may be empty; so may the object's name."""

    uid: str
    kind: GroupKind
    operation: Operation
    namespace: str = ""
    name: str = ""
    sub_resource: str = ""


class Review(Asked, frozen=True, rename="camel"):
    """The question about any object."""

    object: msgspec.Raw = msgspec.Raw(b"null")
    old_object: msgspec.Raw = msgspec.Raw(b"null")
    dry_run: bool | None = None


class _NewPod(Asked, frozen=True, rename="camel"):
    object: PodView | None = None
    dry_run: bool | None = None  # looked at only so that both readings call the same bodies wrong


class _PodEnvelope(msgspec.Struct, frozen=True, rename="camel"):
    request: _NewPod
    api_version: str = ""


class _Envelope(msgspec.Struct, frozen=True, rename="camel"):
    request: Review
    api_version: str = ""


class _Status(msgspec.Struct, frozen=True):
    code: int
    reason: str
    message: str
    status: str = "Failure"


class _Response(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    uid: str
    allowed: bool = msgspec.field(default=None)  # type: ignore[assignment]  # so that false is written too
    patch: bytes | None = None
    patch_type: str | None = None
    status: _Status | None = None
    warnings: tuple[str, ...] = ()


class _Answer(msgspec.Struct, frozen=True, rename="camel"):
    response: _Response
    api_version: str = API_VERSION
    kind: str = "AdmissionReview"


_decoder: Final = msgspec.json.Decoder(_Envelope)
_pod_decoder: Final = msgspec.json.Decoder(_PodEnvelope)
_encoder: Final = msgspec.json.Encoder()


def decode_new_pod(body: bytes) -> tuple[Asked, PodView] | None:
    """The question and the pod, where a body asks about a pod that is created.

    ``None`` for anything else, wrong bodies and pods included: :func:`decode_review` says what those are.
    """
    try:
        envelope = _pod_decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    asked = envelope.request
    new = asked.operation is Operation.CREATE and asked.kind.kind == "Pod" and not asked.sub_resource
    pod = asked.object
    return (asked, pod) if new and pod is not None and envelope.api_version == API_VERSION else None


def decode_review(body: bytes) -> Review:
    """The question of a request's body. Raises ``ValueError`` where it is none, or one of another version."""
    try:
        envelope = _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ValueError(f"is no AdmissionReview: {error}") from error
    if envelope.api_version != API_VERSION:
        raise ValueError(f"is an AdmissionReview of {envelope.api_version or 'no version'}; {API_VERSION} is read")
    return envelope.request


def encode_allowed(uid: str, patch: bytes | None, warnings: Sequence[str]) -> bytes:
    """The answer that lets the object pass; ``patch`` is a JSON patch, ``None`` where nothing changes."""
    patch_type = None if patch is None else "JSONPatch"
    return _encoder.encode(_Answer(_Response(uid, True, patch, patch_type, None, tuple(warnings))))


def encode_denied(uid: str, message: str, warnings: Sequence[str] = ()) -> bytes:
    """The answer that refuses the object, with the message that the user sees."""
    status = _Status(_INVALID, "Invalid", message)
    return _encoder.encode(_Answer(_Response(uid, False, None, None, status, tuple(warnings))))


# text for people


def render_denial(problems: Sequence[Problem]) -> str:
    """Everything that is wrong, one line each; what goes past a few KiB is counted."""
    lines = [_line(problem) for problem in problems]
    if len(lines) == 1:
        return _cut(lines[0], _LONGEST_MESSAGE)
    head = f"{len(lines)} problems:"
    return "\n".join([head, *_within(lines, _LONGEST_MESSAGE - len(head) - 1)])


def render_warnings(problems: Iterable[Problem]) -> tuple[str, ...]:
    """One warning each, in a length and number that the API server hands on unchanged."""
    lines = dict.fromkeys(_cut(_line(problem), LONGEST_WARNING) for problem in problems)
    return tuple(_within(list(lines), _ALL_WARNINGS))


def _line(problem: Problem) -> str:
    """One line without the file or the object (the caller knows those), and without control characters."""
    text = str(problem)
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def _within(lines: Sequence[str], room: int) -> list[str]:
    """The first lines that fit in ``room`` bytes, each with its line end, and a count of the others."""
    used = 0
    kept: list[str] = []
    for place, line in enumerate(lines):
        text = _cut(line, room)
        used += len(text.encode()) + 1
        left = len(lines) - place
        if used > room - (_MORE if left > 1 else 0):
            return [*kept, f"and {left} more"]
        kept.append(text)
    return kept


def _cut(text: str, most: int) -> str:
    """``text`` in at most ``most`` bytes, cut at a word where it can be."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= most:
        return raw.decode()
    head = raw[: most - 3].decode("utf-8", "ignore")
    at_word = head.rpartition(" ")[0]
    return f"{at_word if len(at_word) > len(head) // 2 else head}..."
