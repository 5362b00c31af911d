"""What equal pods have in common, remembered: the verdict on them, and their patch as a form with blanks.

From the second on, a pod of a template costs a look-up and the filling in of its tickets. A pod that brings
records or tickets of its own has no form, because what is to be taken away is not part of its content.
"""

from dataclasses import dataclass
from typing import Final

import msgspec

from tessera.core.ticket import QUANTITIES, RESOURCES, TICKETS
from tessera.wire.kube.admission import render_warnings
from tessera.wire.kube.jsonpatch import Operation
from tessera.wire.kube.mutation import BLANK_KEY, BLANK_QUANTITY, NextTicket, fresh_ticket, outline
from tessera.wire.kube.podview import PodView, bears_records, content_of
from tessera.wire.kube.verdict import Options, Profile, Verdict, judge

_MOST_REMEMBERED: Final = 2048
_LONGEST: Final = 16 * 1024
"""Bytes of a content or a form that is kept: with the number above, each kind is at most 32 MiB."""

_KEY, _QUANTITY = BLANK_KEY.encode(), BLANK_QUANTITY.encode()
_WORDS: Final = tuple(
    (RESOURCES[number // QUANTITIES][-1].encode(), b"%d" % (number % QUANTITIES + 1)) for number in range(TICKETS)
)
"""Key and quantity of each ticket, by its number."""

_encoder: Final = msgspec.json.Encoder()


class Form:
    """The JSON patch of a content, but for its tickets; ``verdict`` must be without errors.

    ``warnings`` are the same for all pods of the content; ``size`` is in bytes.
    """

    __slots__ = ("_blanks", "_head", "size", "warnings")

    def __init__(self, content: PodView, verdict: Verdict, options: Options) -> None:
        drawn = outline(content, verdict, options)
        self.warnings = render_warnings((*verdict.warnings, *drawn.findings.found))
        self._head = _inside(drawn.operations)
        self._blanks = tuple(_inside(blank) for blank in drawn.blanks)
        self.size = sum(map(len, (self._head, *self._blanks, *self.warnings)))

    def fill(self, next_ticket: NextTicket) -> bytes | None:
        """The patch with fresh tickets; ``None`` where there is nothing to do."""
        parts = [self._head] if self._head else []
        taken: set[int] = set()
        for blank in self._blanks:
            number = fresh_ticket(next_ticket, taken).number
            taken.add(number)
            key, quantity = _WORDS[number]
            parts.append(blank.replace(_KEY, key).replace(_QUANTITY, quantity))
        return b"[%b]" % b",".join(parts) if parts else None


def _inside(operations: tuple[Operation, ...]) -> bytes:
    """The operations as JSON, without the brackets of their list."""
    return bytes(_encoder.encode(operations)[1:-1])


@dataclass(slots=True)
class _Known:
    verdict: Verdict
    form: Form | None = None


class Reader:
    """Reads pods, each content once as long as it is remembered; what is older is read again."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._known: dict[tuple[bytes, Profile | None], _Known] = {}

    def read(self, pod: PodView, profile: Profile | None) -> tuple[Verdict, Form | None]:
        """The verdict on ``pod``, whose profile (where it names one that exists) is ``profile``, and its form.

        There is no form for what is refused, and for what brings records of ours.
        """
        content = content_of(pod)
        key = (_encoder.encode(content), profile)
        known = self._known.get(key)
        if known is None:
            known = _Known(judge(content, profile, self._options))
            self._remember(key, known)
        if known.verdict.errors or bears_records(pod):
            return known.verdict, None
        form = known.form
        if form is None:
            form = Form(content, known.verdict, self._options)
            known.form = form if form.size <= _LONGEST else None
        return known.verdict, form

    def _remember(self, key: tuple[bytes, Profile | None], known: _Known) -> None:
        if len(key[0]) > _LONGEST:
            return
        if len(self._known) >= _MOST_REMEMBERED:
            del self._known[next(iter(self._known))]
        self._known[key] = known
