"""NVIDIA's XID codes as rows. Data only.

Source: NVIDIA "XID Errors" (GPU deployment and management documentation, r580), "immediate action" there:
RESTART_APP and IGNORE are `application`; RESET_GPU, RESTART_BM and the workflows that end in one of them are
`fatal`; what names an action for later, or none, is `transient`.
"""

from typing import Final

from tessera.vendors.faults import FaultClass, FaultCode

_APPLICATION: Final = FaultClass.APPLICATION
_TRANSIENT: Final = FaultClass.TRANSIENT
_FATAL: Final = FaultClass.FATAL
_RESTART: Final = "restart the program; if it comes back with other programs, run the vendor's diagnostics"
_RESET: Final = "drain the device and reset it (nvidia-smi --gpu-reset), or restart the machine"
_REPLACE: Final = "restart the machine; if it comes back, have the device replaced"

XIDS: Final[tuple[FaultCode, ...]] = (
    FaultCode(13, _APPLICATION, "graphics engine exception: a kernel read or wrote out of bounds", _RESTART),
    FaultCode(31, _APPLICATION, "memory page fault: a program used an illegal address", _RESTART),
    FaultCode(32, _APPLICATION, "invalid or corrupted push buffer stream", _RESTART),
    FaultCode(38, _TRANSIENT, "driver firmware error", _RESET),
    FaultCode(43, _APPLICATION, "a program's channel was reset after its own fault", _RESTART),
    FaultCode(44, _TRANSIENT, "graphics engine fault during a context switch", _RESET),
    FaultCode(45, _APPLICATION, "preemptive clean-up of a program that ended", _RESTART),
    FaultCode(46, _FATAL, "the device stopped processing", _RESET),
    FaultCode(48, _FATAL, "uncorrectable double-bit memory error", _RESET),
    FaultCode(61, _FATAL, "internal micro-controller breakpoint or warning", _RESET),
    FaultCode(62, _FATAL, "internal micro-controller halt", _RESET),
    FaultCode(63, _TRANSIENT, "a memory row was retired and waits for a reset to be replaced", _RESET),
    FaultCode(64, _FATAL, "a memory row could not be retired", _RESET),
    FaultCode(68, _APPLICATION, "video decoder exception", _RESTART),
    FaultCode(69, _APPLICATION, "graphics engine class error", _RESTART),
    FaultCode(74, _FATAL, "NVLink error", _RESET),
    FaultCode(79, _FATAL, "the device has fallen off the bus", _REPLACE),
    FaultCode(92, _TRANSIENT, "high rate of single-bit memory errors", "run the vendor's diagnostics"),
    FaultCode(94, _APPLICATION, "contained memory error: only the program that met it ends", _RESTART),
    FaultCode(95, _FATAL, "uncontained memory error", _RESET),
    FaultCode(109, _FATAL, "context switch timeout", _RESET),
    FaultCode(110, _FATAL, "security fault", _RESET),
    FaultCode(119, _FATAL, "the device's system processor does not answer", _RESET),
    FaultCode(120, _FATAL, "the device's system processor failed", _RESET),
    FaultCode(121, _TRANSIENT, "corrected errors on the chip-to-chip link", "reset the device when it is idle"),
    FaultCode(140, _FATAL, "unrecovered memory error", _RESET),
    FaultCode(143, _FATAL, "the device could not be initialised", _REPLACE),
    FaultCode(145, _FATAL, "NVLink error of the receiving side", _RESET),
    FaultCode(149, _FATAL, "NVLink error of the link layer", _RESET),
    FaultCode(155, _TRANSIENT, "NVLink software-defined error", _RESET),
    FaultCode(156, _APPLICATION, "a resource was retired, the program that met it ends", _RESTART),
)

UNKNOWN: Final = FaultCode(
    0, _TRANSIENT, "a code that this version does not know", "see NVIDIA's catalogue of XIDs"
)
"""Stands for every code without a row."""
