"""Heaps of processes that run networks: which retain what is freed, and what a process took from the system.

The first touch of a page costs the kernel a fault, one to several microseconds on a virtual machine: for large activations
more than the operator's work. A retained heap has no such faults, and times that repeat. Written for glibc's allocator.
"""

import ctypes
import platform
import resource

# what a process is started with so that its heap retains what it frees, and by the names of the column ``memory``
RETAINED = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1)}
HEAPS = {"default": {}, "kept": RETAINED}


def is_glibc() -> bool:
    """Return whether this system's allocator is glibc's."""
    return platform.libc_ver()[0] == "glibc"


def trim() -> None:
    """Give the memory that this process freed back to the system."""
    if is_glibc():
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def page_faults() -> int:
    """Return the page faults of this process so far that needed no disk: each is a page that the system handed out."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
