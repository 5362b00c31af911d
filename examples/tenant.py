"""A tenant of a device: asks the CUDA driver for memory and says in JSON what it got.

Talks to the driver alone (libcuda.so.1 by ctypes), so it runs wherever a driver is, real or simulated. Meant to
be run under ``tessera run``::

    tessera run --memory 8Gi -- python examples/tenant.py fill
    tessera run --memory 8Gi -- python examples/tenant.py take 4096

``fill`` takes chunks of 256, 16 and 1 MiB until each is refused. ``take N`` takes N MiB. With ``--hold`` the
tenant then keeps its memory until its standard input ends.
"""

import ctypes
import json
import os
import sys

MIB = 1024 * 1024
OUT_OF_MEMORY = 2


class Driver:
    """The few calls that a tenant needs; raises ``OSError`` naming the call and its code."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self._must("cuInit", 0)
        self.context = ctypes.c_void_p()
        self._must("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)
        self._must("cuCtxSetCurrent", self.context)

    def _must(self, name: str, *arguments: object) -> None:
        code = getattr(self.cuda, name)(*arguments)
        if code:
            raise OSError(f"{name} failed with code {code}")

    def allocate(self, mib: int) -> int:
        """The driver's answer to a request for ``mib`` MiB; 0 is success."""
        pointer = ctypes.c_ulonglong()
        return int(self.cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(mib * MIB)))

    def total_mib(self) -> int:
        """How large the device is, as far as this process can see."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._must("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return total.value // MIB


def fill(driver: Driver) -> tuple[int, int]:
    """Take until refused, in ever smaller chunks; the MiB held and the last refusal's code."""
    held, code = 0, 0
    for chunk in (256, 16, 1):
        while not (code := driver.allocate(chunk)):
            held += chunk
    return held, code


def main(arguments: list[str]) -> int:
    """Run one tenant; exit code 0 whatever it was given, 3 where there is no usable driver."""
    try:
        driver = Driver()
    except OSError as error:
        print(f"no usable driver: {error}", file=sys.stderr)
        return 3
    if arguments[0] == "fill":
        held, code = fill(driver)
    else:
        code = driver.allocate(int(arguments[1]))
        held = 0 if code else int(arguments[1])
    answer = {"pid": os.getpid(), "held_mib": held, "code": code, "total_mib": driver.total_mib()}
    print(json.dumps(answer), flush=True)
    if "--hold" in arguments:
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
