"""What a person asks of this machine: the options of ``tessera run`` as a request of the allocator.

Nothing said about memory and compute: whole devices, nobody else on them. Memory only: nothing is charged for
compute, which may then use what the others leave. Compute only: the same part of the memory, because a share
without memory could not start.
"""

import re
from dataclasses import dataclass, replace
from typing import Final

from tessera.core.errors import InputErrors, Problem
from tessera.core.priority import WORDS, priority_of
from tessera.core.request import Claim, Constraints, Container, ModelRule, Pod, Request
from tessera.core.share import ComputeMilli, MemoryAmount, MemoryFraction, MemoryMiB, ShareSpec
from tessera.core.units import BYTES_PER_MIB, WHOLE, MiB, Milli, render_mib, render_percent
from tessera.vendors.models import find_model, nearest_models

CONTAINER: Final = "main"
_LIMIT: Final = "--memory-limit"
_SPILL: Final = "--spill"
NAMESPACE: Final = "run"

_BYTES: Final = {
    "ki": 1 << 10,
    "mi": 1 << 20,
    "gi": 1 << 30,
    "ti": 1 << 40,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
}
_AMOUNT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]i?)b?", re.IGNORECASE)
_PERCENT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*%")
_MEMORY_REMEDY: Final = "write an amount with its unit (8Gi, 8192Mi, 8G) or a part of the device (25%)"
_COMPUTE_REMEDY: Final = "write a part of the device from 0.1% to 100%, such as 30%"
_MOST_DEVICES: Final = 16
_LARGEST_MIB: Final = 1 << 32


@dataclass(frozen=True, slots=True)
class Ask:
    """The options as they were typed; ``None`` where one was not given. The text is what is kept and shown."""

    devices: int = 1
    memory: str | None = None
    compute: str | None = None
    model: str | None = None
    memory_limit: str | None = None
    spill: str | None = None
    priority: str | None = None

    @property
    def is_whole(self) -> bool:
        """Whether whole devices are asked for, because neither memory nor compute was."""
        return self.memory is None and self.compute is None


def parse_memory(text: str, option: str = "--memory") -> MemoryAmount:
    """MiB (rounded down) or thousandths of a device. Raises :class:`InputErrors`."""
    percent = _PERCENT.fullmatch(text.strip())
    if percent:
        return MemoryFraction(_thousandths(option, text, percent[1], _MEMORY_REMEDY))
    amount = _AMOUNT.fullmatch(text.strip())
    if not amount:
        message = "is a number without a unit" if _is_number(text) else "is not an amount of memory"
        raise _wrong(option, text, message, _MEMORY_REMEDY)
    whole, scale = _exact(amount[1])
    mib = whole * _BYTES[amount[2].lower()] // (scale * BYTES_PER_MIB)
    if not 1 <= mib <= _LARGEST_MIB:
        raise _wrong(option, text, "is less than 1 MiB" if mib < 1 else "is too much", _MEMORY_REMEDY)
    return MemoryMiB(MiB(mib))


def parse_compute(text: str) -> Milli:
    """Thousandths of a device. Raises :class:`InputErrors`."""
    percent = _PERCENT.fullmatch(text.strip())
    if not percent:
        message = "is a number without a unit" if _is_number(text) else "is not a part of a device"
        raise _wrong("--compute", text, message, _COMPUTE_REMEDY)
    return _thousandths("--compute", text, percent[1], _COMPUTE_REMEDY)


def _is_number(text: str) -> bool:
    return text.strip().replace(".", "", 1).isdigit()


def _thousandths(option: str, text: str, percent: str, remedy: str) -> Milli:
    whole, scale = _exact(percent)
    milli, rest = divmod(whole * 10, scale)
    if rest:
        raise _wrong(option, text, "is finer than a tenth of a percent", remedy)
    if not 1 <= milli <= WHOLE:
        raise _wrong(option, text, "is not between 0.1% and 100%", remedy)
    return Milli(milli)


def _exact(number: str) -> tuple[int, int]:
    """A decimal number as numerator and denominator: no float rounds what was typed."""
    whole, _, fraction = number.partition(".")
    return int(whole + fraction), 10 ** len(fraction)


def _wrong(option: str, value: str, message: str, remedy: str) -> InputErrors:
    return InputErrors([Problem(option, "", "", value, message, remedy)])


def check_ask(ask: Ask) -> None:
    """Raise :class:`InputErrors` with everything that is wrong with the options, not only the first thing."""
    problems: list[Problem] = []
    for check in (_check_amounts, _check_beyond):
        problems += check(ask)
    if not 1 <= ask.devices <= _MOST_DEVICES:
        message = f"is not between 1 and {_MOST_DEVICES}"
        problems.append(Problem("--devices", "", "", str(ask.devices), message, "ask for fewer devices"))
    if problems:
        raise InputErrors(problems)


def _check_amounts(ask: Ask) -> list[Problem]:
    problems: list[Problem] = []
    for parse, text in ((parse_memory, ask.memory), (parse_compute, ask.compute)):
        try:
            if text is not None:
                parse(text)
        except InputErrors as errors:
            problems += errors.problems
    return problems


def _check_beyond(ask: Ask) -> list[Problem]:
    """What is wrong with a limit beyond the request, with spilling and with the priority."""
    problems: list[Problem] = []
    for check in (_check_limit, _check_spill, _check_priority):
        try:
            check(ask)
        except InputErrors as errors:
            problems += [problem for problem in errors.problems if problem.source != "--memory"]  # said already
    return problems


def _check_priority(ask: Ask) -> None:
    if ask.priority is not None and priority_of(ask.priority) is None:
        raise _wrong("--priority", ask.priority, "is no priority", f"write one of {', '.join(WORDS)}")


def _check_spill(ask: Ask) -> None:
    if ask.spill is not None and isinstance(parse_memory(ask.spill, _SPILL), MemoryFraction):
        raise _wrong(_SPILL, ask.spill, "is a part of a device, and host memory is none", "write 8Gi")


def _check_limit(ask: Ask) -> None:
    if ask.memory_limit is None:
        return
    limit = parse_memory(ask.memory_limit, _LIMIT)
    if ask.memory is None:
        raise _wrong(_LIMIT, ask.memory_limit, "is beyond what request?", "say --memory too")
    request = parse_memory(ask.memory)
    if type(limit) is not type(request):
        remedy = "write both as amounts (8Gi) or both as parts (25%)"
        raise _wrong(_LIMIT, ask.memory_limit, "cannot be compared with --memory", remedy)
    if _size(limit) < _size(request):
        raise _wrong(
            _LIMIT, ask.memory_limit, f"is less than --memory {ask.memory}", "raise it, or lower --memory"
        )


def _size(amount: MemoryAmount) -> int:
    return amount.mib if isinstance(amount, MemoryMiB) else amount.milli


def share_spec(ask: Ask) -> ShareSpec:
    """The share that the options ask of each device. Raises :class:`InputErrors`."""
    spec = _charged(ask)
    priority = priority_of(ask.priority or "") or spec.priority
    spill = parse_memory(ask.spill, _SPILL) if ask.spill else None
    limit = parse_memory(ask.memory_limit, _LIMIT) if ask.memory_limit else spec.memory_limit
    return replace(
        spec,
        memory_limit=limit,
        priority=priority,
        spill=spill.mib if isinstance(spill, MemoryMiB) else spec.spill,
    )


def _charged(ask: Ask) -> ShareSpec:
    if ask.is_whole:
        whole, all_compute = MemoryFraction(WHOLE), ComputeMilli(WHOLE)
        return ShareSpec(whole, whole, all_compute, all_compute, exclusive=True)
    if ask.compute is None:
        memory = parse_memory(ask.memory or "")
        return ShareSpec(memory, memory, ComputeMilli(Milli(0)), ComputeMilli(WHOLE))
    milli = parse_compute(ask.compute)
    memory = MemoryFraction(milli) if ask.memory is None else parse_memory(ask.memory)
    return ShareSpec(memory, memory, ComputeMilli(milli), ComputeMilli(milli))


def resized_ask(ask: Ask, memory: str | None, compute: str | None) -> Ask:
    """The ask with other words for memory, compute or both; what is ``None`` means the same as before.

    So what was left out is said where it would mean something else now: a whole device was all of its memory and
    compute, and compute alone meant the same part of the memory.
    """
    unsaid = "100%" if ask.is_whole else None
    return replace(
        ask,
        memory=memory or ask.memory or unsaid or ask.compute,
        compute=compute or ask.compute or unsaid,
    )


def pod_of(ask: Ask, uid: str, name: str) -> Pod:
    """The ask as the allocator takes it: a pod of one container."""
    models = (ModelRule(_model_pattern(ask.model)),) if ask.model else ()
    claim = Claim((CONTAINER,), ask.devices, share_spec(ask))
    request = Request((claim,), Constraints(models_allowed=models))
    return Pod(NAMESPACE, name, uid, (Container(CONTAINER),), request)


def _model_pattern(model: str) -> str:
    """A name of the table as the driver writes it; what the table does not know, as it was typed."""
    known = find_model(model)
    return known.name if known and model.lower() not in known.name.lower() else model


def model_hint(model: str) -> str:
    """What a model's name may have meant, for a refusal; empty where there is nothing to say."""
    near = () if find_model(model) else nearest_models(model)
    return f"did you mean {' or '.join(near)}?" if near else ""


def ask_text(ask: Ask) -> str:
    """The ask in words, with what leaving something out meant."""
    more = (
        f", up to {ask.memory_limit} while nobody requested it" if ask.memory_limit else "",
        f", {ask.spill} of it in host memory if need be" if ask.spill else "",
        f", priority {ask.priority}" if ask.priority else "",
    )
    return _charged_text(ask) + "".join(more)


def _charged_text(ask: Ask) -> str:
    devices = "1 device" if ask.devices == 1 else f"{ask.devices} devices"
    of_model = f" of model {ask.model}" if ask.model else ""
    if ask.is_whole:
        whole, them = ("1 whole device", "it") if ask.devices == 1 else (f"{ask.devices} whole devices", "them")
        return f"{whole}{of_model}, nobody else on {them} (because neither --memory nor --compute was said)"
    spec = share_spec(ask)
    memory = _memory_text(spec.memory_request)
    if ask.compute is None:
        return f"{devices}{of_model} with {memory}; compute was not said: none is reserved, all may be used"
    compute = f"{render_percent(parse_compute(ask.compute))} of its compute"
    if ask.memory is None:
        memory += " (memory was not said: the same part as compute)"
    each = " each" if ask.devices > 1 else ""
    return f"{devices}{of_model} with {compute} and {memory}{each}"


def _memory_text(amount: MemoryAmount) -> str:
    if isinstance(amount, MemoryMiB):
        return render_mib(amount.mib)
    return f"{render_percent(amount.milli)} of its memory"
