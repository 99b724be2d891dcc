"""The CPU time that Linux control groups allow this process: ``docker --cpus 2``, Kubernetes."""

import math
from pathlib import Path


def cpu_quota(root: Path = Path("/")) -> float:
    """Return how many CPUs the control group (v2) of this process and its parents allow, or inf.

    ``root`` holds ``proc`` and ``sys``. A container sees its own group as the root of the mount.
    """
    quota = math.inf
    for line in _text(root / "proc/self/cgroup").splitlines():
        group = Path(line.removeprefix("0::").lstrip("/"))
        for folder in (group, *group.parents) if line.startswith("0::") else ():
            allowed, _, period = _text(root / "sys/fs/cgroup" / folder / "cpu.max").partition(" ")
            if allowed.isdecimal() and period.isdecimal() and int(period):
                quota = min(quota, int(allowed) / int(period))
    return quota


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
