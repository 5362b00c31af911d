"""The C heap of this process: what was freed goes back to the system."""

import ctypes


def give_back() -> None:
    """Return what the C library keeps of freed memory; nothing where it cannot (it is glibc that can).

    A burst leaves free pieces behind that count as resident for as long as the process lives. Takes about a
    millisecond, in which nothing else runs.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))
