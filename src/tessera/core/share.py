"""What a container asks of each device it uses, before and after a device is known.

A :class:`ShareSpec` is what was written: memory in MiB or as a fraction of the device, compute in
milli-devices or in TFLOPS. A :class:`Share` is the same on one particular device. Both carry a *request*
(charged against the physical device) and a *limit* (enforced at run time).
"""

from dataclasses import dataclass
from typing import Final, assert_never

from tessera.core.priority import Priority
from tessera.core.units import WHOLE, MiB, Milli

NO_MEMORY: Final = MiB(0)


@dataclass(frozen=True, slots=True)
class MemoryMiB:
    """So many MiB of each device."""

    mib: MiB


@dataclass(frozen=True, slots=True)
class MemoryFraction:
    """So many thousandths of each device's memory, rounded down to a MiB."""

    milli: Milli


@dataclass(frozen=True, slots=True)
class ComputeMilli:
    """So many thousandths of each device's compute."""

    milli: Milli


@dataclass(frozen=True, slots=True)
class ComputeTflops:
    """So many thousandths of a TFLOPS (dense FP16) on each device; needs a device model that is known."""

    milli_tflops: int


MemoryAmount = MemoryMiB | MemoryFraction
ComputeAmount = ComputeMilli | ComputeTflops


@dataclass(frozen=True, slots=True)
class ShareSpec:
    """A share as it was asked for. ``exclusive`` means: nobody else on the device, whatever is left of it.

    ``spill`` is how much of its memory may lie in host memory while the device is full.
    """

    memory_request: MemoryAmount
    memory_limit: MemoryAmount
    compute_request: ComputeAmount
    compute_limit: ComputeAmount
    exclusive: bool = False
    priority: Priority = Priority.MEDIUM
    spill: MiB = NO_MEMORY


@dataclass(frozen=True, slots=True)
class Share:
    """A share on one device: MiB and milli-devices, each as request (charged) and limit (enforced)."""

    memory_request: MiB
    memory_limit: MiB
    compute_request: Milli
    compute_limit: Milli
    exclusive: bool = False
    priority: Priority = Priority.MEDIUM
    spill: MiB = NO_MEMORY


def resolve_memory(amount: MemoryAmount, device_mib: int) -> MiB:
    """``amount`` in MiB on a device of ``device_mib``.

    Fractions round down, as HAMi's percentages do, but never to nothing: a device of which no memory is known (0)
    has room for no part of it, nor for whoever asks for the whole device.
    """
    match amount:
        case MemoryMiB(mib):
            return mib
        case MemoryFraction(milli):
            return MiB(max(1, device_mib * milli // 1000)) if milli else MiB(0)
        case _:
            assert_never(amount)


def resolve_compute(amount: ComputeAmount, device_milli_tflops: int | None) -> Milli | None:
    """``amount`` in milli-devices; ``None`` where TFLOPS are asked of a model whose TFLOPS are unknown.

    TFLOPS round down to a milli-device but never to nothing, so that n equal shares of a device's TFLOPS
    always fit it and no share is free of charge: at most one milli-device a share goes uncounted. More than
    the device has rounds up, so that it never fits.
    """
    match amount:
        case ComputeMilli(milli):
            return milli
        case ComputeTflops(milli_tflops):
            if not device_milli_tflops:
                return None
            above = milli_tflops > device_milli_tflops
            milli = Milli((milli_tflops * WHOLE + above * (device_milli_tflops - 1)) // device_milli_tflops)
            return Milli(max(1, milli)) if milli_tflops else Milli(0)
        case _:
            assert_never(amount)


def resolve(spec: ShareSpec, device_mib: int, device_milli_tflops: int | None) -> Share | None:
    """``spec`` on one device, or ``None`` where its TFLOPS cannot be known. A limit is never above the device."""
    request = resolve_compute(spec.compute_request, device_milli_tflops)
    limit = resolve_compute(spec.compute_limit, device_milli_tflops)
    if request is None or limit is None:
        return None
    return Share(
        memory_request=resolve_memory(spec.memory_request, device_mib),
        memory_limit=MiB(min(resolve_memory(spec.memory_limit, device_mib), device_mib)),
        compute_request=request,
        compute_limit=Milli(min(limit, WHOLE)),
        exclusive=spec.exclusive,
        priority=spec.priority,
        spill=spec.spill,
    )
