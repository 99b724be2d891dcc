"""Every policy by its name, the baselines and ``hybrid``; a new policy becomes known here."""

from functools import partial

from lib.errors import InputError, choices, entry
from lib.schedule.policies.baselines import BASELINES
from lib.schedule.policies.gangs import bears_gangs, with_gangs
from lib.schedule.policies.hybrid.policy import check_objective, hybrid
from lib.schedule.problem import Fleet
from lib.schedule.state import Policy

_WITHOUT_GANGS = ("energy", "price")
POLICIES: dict[str, Policy] = {**BASELINES, "hybrid": hybrid}


def policy(name: str, **options: object) -> Policy:
    """Return a policy by name, with options for those that take some; InputError lists the policies."""
    chosen = entry(POLICIES, name, "policy")
    return partial(chosen, **options) if options else chosen


def lacks(name: str, fleet: Fleet) -> str:
    """Return which device a policy needs and a fleet has none of; empty if it can run there."""
    if name == "cpu-only" and not fleet.cpu.any():
        return "a CPU: a CPU's type begins with cpu"
    return "anything but a CPU" if name == "gpu-only" and fleet.cpu.all() else ""


def policy_for(name: str, objective: str = "makespan", gangs: bool = False) -> Policy:
    """Return a policy that pursues an objective, and places gangs if it can; ``gangs``: it must.

    Raises InputError for one that is not there, a policy that takes no objective, and one that places no gangs.
    """
    check_objective(objective)
    chosen = policy(name, objective=objective) if name == "hybrid" else policy(name)
    if name != "hybrid" and objective != "makespan":
        raise InputError(f"the policy {name} takes no objective; {objective} is pursued by hybrid")
    by_watts = objective in _WITHOUT_GANGS
    if bears_gangs(chosen) and not by_watts:
        return partial(with_gangs, policy=chosen)
    if gangs:
        able = [other for other in POLICIES if bears_gangs(policy(other))]
        raise InputError(f"the objective {objective} is not pursued where jobs need several devices at once" if by_watts else
                         f"the policy {name} starts each job on one device; jobs on several go with {choices(able)}")
    return chosen
