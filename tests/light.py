"""Tasks that weigh nothing, and faults, for workers that import no torch."""

import errno
import json
import os
import signal
import sys
import threading
import time

from lib.errors import InputError


def _leave(path, text):
    with open(path, "a") as file:
        file.write(text)


def sleep(devices, threads, seconds=0.01, value=None):
    time.sleep(seconds)
    return {"value": value, "torch": "torch" in sys.modules}


def where(devices, threads):
    """Return what the worker finds: the code, the place of outputs, the devices, the threads."""
    import lib
    from lib import paths

    return {"lib": os.path.dirname(lib.__file__), "output": str(paths.OUTPUT), "devices": devices,
            "threads": [threads, os.environ["OMP_NUM_THREADS"]], "pid": os.getpid(),
            "card": os.environ.get("CUDA_VISIBLE_DEVICES")}


def marked(devices, threads, path, value=None, fault=None):
    """Misbehave the first time, if a fault is given; leave a line for each time that it ended well."""
    if fault and not os.path.exists(path):
        _leave(path, "")
        globals()[fault](devices, threads)
    _leave(f"{path}.done", "done\n")
    return {"value": value}


def trail(devices, threads, path, seconds):
    """Leave a line when it begins and one when it ends."""
    _leave(path, f"{json.dumps(['begins', time.monotonic(), os.getpid()])}\n")
    time.sleep(seconds)
    _leave(path, f"{json.dumps(['ends', time.monotonic(), os.getpid()])}\n")
    return {"best_value": 1.0}


def tidy(devices, threads, path, seconds):
    """Sleep; leave a line when it begins, and one whenever it ends."""
    _leave(path, f"begins {os.getpid()}\n")
    try:
        time.sleep(seconds)
    finally:
        _leave(path, "tidied\n")


def kill(devices, threads):
    os.kill(os.getpid(), signal.SIGKILL)


def freeze(devices, threads):
    # to this thread: a signal to the process may stop another one first, and the job would end well
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def fail(devices, threads):
    raise ValueError("this job is wrong")


def starve(devices, threads):
    raise MemoryError


def leave(devices, threads):
    sys.exit(0)


def full(devices, threads, until):
    """Find the disk full until there is a file."""
    if not os.path.exists(until):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return {"value": "written"}


def refuse(devices, threads):
    raise InputError("this input is wrong")


def wait_in_vain(devices, threads):
    class HeldForNowError(InputError):
        pass

    raise HeldForNowError("another process is at it")


def hang(devices, threads):
    while True:
        time.sleep(1)


def odd(devices, threads):
    return {"value": object()}


def nothing(devices, threads):
    return {"value": float("nan")}


def refuse_here(devices, threads):
    """Refuse a task, as one of the processes of several devices."""
    raise InputError(f"not on {devices[0]} with {threads} threads")


def end_here(devices, threads):
    """End the process of a task."""
    sys.exit(3)
