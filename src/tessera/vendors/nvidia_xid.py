"""NVIDIA's XID codes as rows. Data only.

Source: NVIDIA, "Analyzing Xid Errors with the Xid Catalog" (docs.nvidia.com/deploy/xid-errors), Ampere and newer,
as of 29 October 2025. The class follows from its column of immediate actions:

* RESTART_APP and IGNORE are ``application``: the device stays in use;
* RESET_GPU, RESTART_VM and RESTART_BM are ``fatal``, and so are workflows that may end in one of them, since a
  code comes here without the registers that such a workflow asks for (48, 74, 144 to 146, 149, 150);
* what asks for a person's look (CHECK_*, UPDATE_SWFW, CONTACT_SUPPORT) or has no action is ``transient``. Codes
  that the catalogue lists as unused, or without an action, have no row.

45 (WORKFLOW_XID_45) follows another code or a program that was ended, and 154 only announces what another code
asks for: neither says anything of the device by itself.
"""

from typing import Final

from tessera.vendors.faults import FaultClass, FaultCode

_APPLICATION: Final = FaultClass.APPLICATION
_TRANSIENT: Final = FaultClass.TRANSIENT
_FATAL: Final = FaultClass.FATAL
_RESTART: Final = "restart the program; if it comes back with other programs, run the vendor's diagnostics"
_NOTHING: Final = "nothing now; if it comes again and again, run the vendor's diagnostics"
_RESET: Final = "drain the device and reset it (nvidia-smi --gpu-reset), or restart the machine"
_REPLACE: Final = "restart the machine; if it comes back, have the device replaced"
_MACHINE: Final = "restart the virtual machine"
_LOOK: Final = "see NVIDIA's catalogue of XIDs"

_COPY: Final = (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136))
"""Copy engines 0 to 19."""
_DECODER: Final = (68, 83, 84, 88, 89, 96, 97, 98)
"""Video decoders 0 to 7."""
_JPEG: Final = (82, *range(99, 106))
"""JPEG decoders 0 to 7."""

XIDS: Final[tuple[FaultCode, ...]] = (
    FaultCode(8, _APPLICATION, "the device stopped processing a program's work", _RESTART),
    FaultCode(11, _APPLICATION, "invalid or corrupted push buffer stream", _RESTART),
    FaultCode(13, _APPLICATION, "graphics engine exception: a kernel read or wrote out of bounds", _RESTART),
    FaultCode(25, _APPLICATION, "invalid or illegal push buffer stream", _RESTART),
    FaultCode(31, _APPLICATION, "memory page fault: a program used an illegal address", _RESTART),
    FaultCode(32, _APPLICATION, "invalid or corrupted push buffer stream", _RESTART),
    FaultCode(37, _APPLICATION, "driver firmware error", _NOTHING),
    FaultCode(38, _APPLICATION, "driver firmware error", _NOTHING),
    *(FaultCode(code, _APPLICATION, "copy engine exception", _RESTART) for code in _COPY),
    FaultCode(43, _APPLICATION, "a program's channel was reset after its own fault", _RESTART),
    FaultCode(44, _APPLICATION, "graphics engine fault during a context switch", _NOTHING),
    FaultCode(45, _APPLICATION, "preemptive clean-up of a program that ended", _RESTART),
    FaultCode(46, _FATAL, "the device stopped processing", _RESET),
    FaultCode(48, _FATAL, "uncorrectable double-bit memory error", _RESET),
    FaultCode(54, _TRANSIENT, "auxiliary power is not connected", "connect it"),
    FaultCode(60, _APPLICATION, "video processor exception", _RESTART),
    FaultCode(62, _FATAL, "internal micro-controller halt", _RESET),
    FaultCode(63, _APPLICATION, "a memory row is remapped at the next reset", "reset the device when it is idle"),
    FaultCode(64, _FATAL, "a memory row could not be remapped", _RESET),
    FaultCode(66, _APPLICATION, "illegal access by the driver", _NOTHING),
    FaultCode(67, _APPLICATION, "illegal access by the driver", _NOTHING),
    *(FaultCode(code, _APPLICATION, "video decoder exception", _RESTART) for code in _DECODER),
    FaultCode(69, _APPLICATION, "graphics engine class error", _RESTART),
    FaultCode(74, _FATAL, "NVLink error", _RESET),
    FaultCode(78, _TRANSIENT, "a virtual GPU could not be started", "update the driver"),
    FaultCode(79, _FATAL, "the device has fallen off the bus", _REPLACE),
    FaultCode(80, _APPLICATION, "corrupted data was sent to the device", _RESTART),
    *(FaultCode(code, _APPLICATION, "JPEG decoder error", _RESTART) for code in _JPEG),
    FaultCode(86, _APPLICATION, "optical flow engine exception", _RESTART),
    FaultCode(92, _APPLICATION, "high rate of single-bit memory errors", "run the vendor's diagnostics"),
    FaultCode(93, _APPLICATION, "wear limit of the board's store exceeded", _NOTHING),
    FaultCode(94, _APPLICATION, "contained memory error: only the program that met it ends", _RESTART),
    FaultCode(95, _FATAL, "uncontained memory error", _RESET),
    FaultCode(106, _APPLICATION, "a test message of the management bus", "nothing"),
    FaultCode(107, _APPLICATION, "a silent test message of the management bus", "nothing"),
    FaultCode(108, _APPLICATION, "NVLink remote translation error", _NOTHING),
    FaultCode(109, _FATAL, "context switch timeout", _RESET),
    FaultCode(110, _FATAL, "security fault", _RESET),
    FaultCode(119, _FATAL, "the device's system processor does not answer", _RESET),
    FaultCode(120, _FATAL, "the device's system processor failed", _RESET),
    FaultCode(121, _APPLICATION, "corrected errors on the chip-to-chip link", "reset the device when it is idle"),
    FaultCode(136, _FATAL, "link training failed", _RESET),
    FaultCode(137, _APPLICATION, "NVLink privilege error", _NOTHING),
    FaultCode(139, _APPLICATION, "optical flow engine exception", _RESTART),
    FaultCode(140, _FATAL, "unrecovered memory error", _RESET),
    FaultCode(141, _APPLICATION, "CUDA fast path error", _NOTHING),
    FaultCode(142, _TRANSIENT, "video encoder error", _LOOK),
    FaultCode(143, _FATAL, "the device could not be initialised", _RESET),
    FaultCode(144, _FATAL, "NVLink error of unit SAW", _RESET),
    FaultCode(145, _FATAL, "NVLink error of unit RLW", _RESET),
    FaultCode(146, _FATAL, "NVLink error of unit TLW", _RESET),
    FaultCode(147, _APPLICATION, "NVLink error of unit TREX", _NOTHING),
    FaultCode(148, _APPLICATION, "NVLink error of unit NVLPW", _NOTHING),
    FaultCode(149, _FATAL, "NVLink error of unit NETIR", _RESET),
    FaultCode(150, _FATAL, "NVLink error of unit MSE", _RESET),
    FaultCode(151, _FATAL, "key rotation error", _MACHINE),
    FaultCode(152, _APPLICATION, "memory error of the deep learning accelerator", _NOTHING),
    FaultCode(153, _APPLICATION, "timeout of the deep learning accelerator", _NOTHING),
    FaultCode(154, _APPLICATION, "another code asks for another recovery now", "see the code beside it"),
    FaultCode(155, _FATAL, "NVLink software-defined error", _RESET),
    FaultCode(156, _FATAL, "a resource was retired", _RESET),
    FaultCode(157, _APPLICATION, "a resource could not be retired", _NOTHING),
    FaultCode(158, _FATAL, "fatal timeout", _RESET),
    FaultCode(159, _TRANSIENT, "error of the coherent interconnect", _LOOK),
    FaultCode(160, _APPLICATION, "a channel was retired", _NOTHING),
    FaultCode(161, _APPLICATION, "a channel could not be retired", _NOTHING),
)

UNKNOWN: Final = FaultCode(0, _TRANSIENT, "a code that this version does not know", _LOOK)
"""Stands for every code without a row."""
