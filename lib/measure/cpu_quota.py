"""The CPU time that a container allows this process: the quota of its Linux control groups (cgroups v1 and v2)."""

import math
from pathlib import Path, PurePosixPath


def cpu_quota(root: Path = Path("/")) -> float:
    """Return how many CPUs the control groups of this process and their parents allow; inf without a limit.

    ``docker --cpus 2`` and Kubernetes limits are such quotas. ``root`` is the folder that holds ``proc`` and ``sys``.
    """
    groups = {}  # path by controller; cgroups v2 has one path for all
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        groups |= dict.fromkeys(controllers.split(","), path)
    quota = math.inf
    for line in _text(root / "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        controller = {"cgroup2": "", "cgroup": "cpu"}.get(kind)
        if controller in groups and (kind == "cgroup2" or "cpu" in options.split(",")):
            mounted, point = left.split()[3:5]
            for folder in _folders(root / point.lstrip("/"), groups[controller], mounted):
                quota = min(quota, _limit(folder))
    return quota


def _folders(point: Path, group: str, mounted: str) -> list[Path]:
    """Return the folders of a group and its parents below a mount point that shows the group ``mounted`` as its root."""
    try:
        parts = PurePosixPath(group).relative_to(mounted).parts
    except ValueError:  # the group lies outside of what is mounted
        parts = ()
    return [point.joinpath(*parts[:number]) for number in range(len(parts) + 1)]


def _limit(folder: Path) -> float:
    """Return the CPUs that one group allows; inf without a limit: ``max`` in cgroups v2, -1 in v1."""
    words = (_text(folder / "cpu.max") or f"{_text(folder / 'cpu.cfs_quota_us')} {_text(folder / 'cpu.cfs_period_us')}").split()
    if len(words) == 2 and all(word.isdecimal() for word in words) and int(words[1]):
        return int(words[0]) / int(words[1])
    return math.inf


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
