"""Jobs that weigh nothing, and faults, for workers that import no torch."""

import errno
import os
import resource
import signal
import sys
import threading
import time

from lib.errors import InputError


def sleep(job, seconds=0.01, value=None):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        job.check()
        time.sleep(min(0.005, max(0.0, end - time.monotonic())))
    return {"value": value, "torch": "torch" in sys.modules}


def where(job):
    """Say what the worker finds: the code, the place of outputs, the threads."""
    import lib
    from lib import paths

    return {"lib": os.path.dirname(lib.__file__), "output": str(paths.OUTPUT), "threads": os.environ["OMP_NUM_THREADS"]}


def card(job):
    """Say which card the worker may see, and by which device it is told to use it."""
    return {"card": os.environ.get("CUDA_VISIBLE_DEVICES"), "device": job.device, "torch": "torch" in sys.modules}


def shout(job, lines):
    """Print lines, progress, and from below Python; a long line, and one that does not end."""
    for number in range(lines):
        print(f"line {number}")
    print("10 %\r50 %\r100 %", file=sys.stderr)
    os.system("echo from below")
    print("x" * 8200)
    sys.stdout.write("no newline")


def print_and_die(job):
    print("last words")
    sys.stdout.write("unfinished")
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def _leave(path, text):
    with open(path, "a") as file:
        file.write(text)


def once(job, path, fault, value=None):
    """Misbehave the first time, end well the second."""
    if not os.path.exists(path):
        _leave(path, "")
        globals()[fault](job)
    return {"value": value}


def marked(job, path, value, fault=None):
    """Misbehave the first time, if a fault is given; leave a line beside ``path`` for each time that it ended well."""
    result = once(job, path, fault, value) if fault else {"value": value}
    _leave(f"{path}.done", "done\n")
    return result


def gang(job, path, seconds=0.05, fault=None):
    """Wait until all members are there, and then misbehave the first time, in the last one. ``path`` begins file names."""
    rank, count, rendezvous = job.member
    there = f"{path}.{os.path.basename(rendezvous)}"
    _leave(there, "x")
    while os.path.getsize(there) < count:
        job.check()
        time.sleep(0.005)
    if fault and rank == count - 1:
        once(job, f"{path}.{fault}", fault)
    sleep(job, seconds)
    return {"rank": rank, "count": count}


def kill(job):
    os.kill(os.getpid(), signal.SIGKILL)


def freeze(job):
    # to this thread: a signal to the process may stop another one first, and the job would end well meanwhile
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def chatter(job, count, path=None, pause_s=0.0):
    """Print numbered lines, the last without its end; ``path`` gets this process's id."""
    if path:
        _leave(path, f"{os.getpid()}\n")
    for number in range(count - 1):
        print(number)
        time.sleep(pause_s)
    print("low \r" * 3 + "é" * 3, end="", file=sys.stderr)
    return {"value": count}


def trail(job, path, seconds):
    """Leave a line when it begins and one when it ends, and print some between."""
    _leave(path, f'["begins", {time.monotonic()}, {os.getpid()}]\n')
    for number in range(10):
        print(number)
        time.sleep(seconds / 10)
        job.check()
    _leave(path, f'["ends", {time.monotonic()}, {os.getpid()}]\n')
    return {"best_value": 1.0}


def pour(job, count, a_second):
    """Print numbered lines, so many a second."""
    begin = time.monotonic()
    for number in range(count):
        if number % 10 == 0:
            job.check()
            time.sleep(max(0.0, begin + number / a_second - time.monotonic()))
        print(f"line {number} of {count}: loss 0.123, 1,234 images/s")


def measured(job, steps):
    """Report a loss a step, the last of which is no number."""
    for step in range(steps):
        loss = float("nan") if step == steps - 1 else 1 / (step + 1)
        job.report({"metrics": {"step": step, "epoch": 0, "epochs": 1, "loss": loss}})
    return {"best_value": 0.5}


def weigh(job, size):
    """Report, and return, so many characters."""
    job.report({"metrics": {"text": "x" * size}})
    return "x" * size


def fail(job):
    raise ValueError("this job is wrong")


def starve(job):
    raise MemoryError


def full(job, until):
    """Find the disk full until there is a file."""
    if not os.path.exists(until):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return {"value": "written"}


def refuse(job):
    raise InputError("this input is wrong")


def wait_in_vain(job):
    class HeldForNowError(InputError):
        pass

    raise HeldForNowError("another process is at it")


def hang(job):
    while True:
        time.sleep(1)


def slow(job):
    time.sleep(0.2)


def leave(job):
    sys.exit(0)


def exhaust(job):
    """Use up what memory this process may have: the system refuses it, not a test."""
    most, hardest = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as file:
        held = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + 2**26, hardest))
    try:
        blocks = []
        while True:
            blocks.append(bytearray(2**24))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (most, hardest))


def odd(job):
    """Return what no file can hold."""
    return {"value": {1, 2}}


def refuse_here(devices, threads):
    """Refuse a task, as one of the processes of several devices."""
    raise InputError(f"not on {devices[0]} with {threads} threads")


def end_here(devices, threads):
    """End the process of a task."""
    sys.exit(3)
