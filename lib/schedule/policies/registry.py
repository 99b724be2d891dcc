"""Every policy by its name, the baselines and ``hybrid``; a new policy becomes known here."""

from functools import partial

from lib.errors import InputError, choices
from lib.schedule.policies.baselines import BASELINES
from lib.schedule.policies.hybrid.policy import OBJECTIVES, hybrid
from lib.schedule.state import Policy

POLICIES: dict[str, Policy] = {**BASELINES, "hybrid": hybrid}


def policy(name: str, **options: object) -> Policy:
    """Return a policy by name, with options for those that take some; InputError lists the policies."""
    if name not in POLICIES:
        raise InputError(f"no policy {name!r}; there are: {choices(POLICIES)}")
    return partial(POLICIES[name], **options) if options else POLICIES[name]


def aimed(name: str, objective: str = "makespan") -> Policy:
    """Return a policy that pursues an objective; InputError for one that is not there, or a policy that takes none."""
    if objective not in OBJECTIVES:
        raise InputError(f"no objective {objective!r}; there are: {choices(OBJECTIVES)}")
    if name == "hybrid":
        return policy(name, objective=objective)
    if name in POLICIES and objective != "makespan":
        raise InputError(f"the policy {name} takes no objective; {objective} is pursued by hybrid")
    return policy(name)
