"""The door of the YAML that people edit (``params/``): every file's loader, each with a tree that is changed somewhere."""

import copy
import json
from functools import partial

from lib import paths
from lib.config import definitions
from lib.config.base import load, load_yaml
from lib.finetune.config import TrainConfig, load_configs
from lib.tensorrt import training
from lib.work.graph import spaces
from tests.doors import ANY, SAME, VALUES, WRONG, Door, pass_through, pick

LOADERS = {
    "devices": definitions.load_devices, "scenarios": definitions.load_scenarios, "workloads": definitions.load_workloads,
    "nsight_metrics": definitions.load_metrics, "matrix": definitions.load_matrix, "networks": definitions.load_campaign,
    "networks_conditions": definitions.load_campaign, "report": definitions.load_report_plan, "sweeps": spaces.load_sweeps,
    "networks_gpu": definitions.load_campaign, "networks_gpu_compiled": definitions.load_campaign,
    "networks_runtimes": definitions.load_campaign,
    "gpu_finetune": partial(load, TrainConfig), "gpu_finetune_short": partial(load, TrainConfig),
    "training": load_configs, "layer_power": training.load_settings}


def places(tree, most=None, path=()):
    """Return the path of every node of a tree of mappings and lists, of lists the first ``most`` elements; the root's too."""
    below = tree.items() if isinstance(tree, dict) else list(enumerate(tree))[:most] if isinstance(tree, list) else ()
    return [path, *(deeper for key, value in below for deeper in places(value, most, (*path, key)))]


def at(tree, path):
    """Return the node at a path."""
    for key in path:
        tree = tree[key]
    return tree


def changed(tree, path, *value):
    """Return a copy of a tree with another node at a path, or with none."""
    if not path:
        return value[0]
    tree = copy.deepcopy(tree)
    holder = at(tree, path[:-1])
    if value:
        holder[path[-1]] = value[0]
    else:
        del holder[path[-1]]
    return tree


def altered(tree, how, data, most=None):
    """Return a tree that is changed somewhere, and at which place; the lists of any place are read as ``places`` says."""
    kinds = {"unknown name": dict, "not finite": float}
    nodes = [place for place in places(tree, most) if isinstance(at(tree, place), kinds.get(how, object))] or [()]
    place = pick(data, nodes, "place")
    if how == "another shape":  # a list for a mapping, a mapping for the rest
        return changed(tree, place, ["a list"] if isinstance(at(tree, place), dict) else {"a": {"mapping": 1}}), place
    if how == "unknown name":
        return changed(tree, (*place, "of_no_meaning"), "of no meaning"), place
    if how == "not finite":
        return changed(tree, place, pick(data, [float("nan"), float("inf")])), place
    if how == "left out" and place:
        return changed(tree, place), place
    return changed(tree, place, pick(data, VALUES, "value")), place


HOWS = {"as it is": SAME, "another shape": WRONG, "unknown name": WRONG, "not finite": WRONG, "another value": ANY,
        "left out": ANY}


def attempt(name, data, folder):
    """Change one file somewhere and hand it in; from a space of a sweep that is taken a configuration can be drawn."""
    path, load, place = folder / f"{name}.yaml", LOADERS[name], ()
    tree, how = load_yaml(paths.PARAMS / path.name), pick(data, HOWS, "how")
    if how != "as it is":
        tree, place = altered(tree, how, data)
    path.write_text(json.dumps(tree).replace("NaN", ".nan").replace("Infinity", ".inf"))  # YAML 1.2 takes JSON

    def read():
        taken = load(path)
        if name == "sweeps" and place[:1] == ("spaces",) and len(place) > 1 and place[1] in taken.spaces:
            next(spaces.sample(place[1], taken.spaces[place[1]], taken.limits.get("cpu", spaces.Limits()), 0))
        return taken

    return pass_through(read, HOWS[how], f"{name}: {how} at {place}", load(paths.PARAMS / path.name))


DOOR = Door("definitions in YAML", lambda data, folder: attempt(pick(data, LOADERS, "file"), data, folder))
