"""The verb ``gpu``: it runs the steps of params/gpu.yaml, packs what they measured and checks it. Imports nothing heavy."""

import argparse
import shutil
import time
from collections.abc import Collection
from pathlib import Path

from lib import command_list, paths
from lib.cli.options import add_verb, number, option, whole
from lib.errors import InputError, choices

_RESERVED_S = 90.0  # of a call, for the bundle and its check
_IMPORTED = ("ruamel.yaml", "pydantic", "filelock")  # packages that reading params/gpu.yaml takes
_CHECK_S = 600.0
_REPLAYED = ("profiles", "sweep", "ceilings")  # steps whose tables these notebooks replay
_CHECKED = ("01", "02", "03", "05")  # notebooks that run --check replays of every device of a reference machine


def _packed(folder: Path, device: str, left: Collection[str] = ()) -> tuple[Path, str]:
    """Pack what was measured; return the bundle, and why it would not replay as a reference, or nothing.

    ``left``: steps that are not done.
    """
    from lib.measure import packing

    target, scratch, log = folder / "bundle.zip", folder / "check", folder / "check.log"
    target.unlink(missing_ok=True)
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        packing.pack(target)
        words = ["lib", "data", "unpack", str(target), "--name", "check"]
        failure = command_list.call(words, log, _CHECK_S, output=scratch)
        if not failure:
            (machine,) = (scratch / "data" / "imported").iterdir()
            if missing := [step for step in _REPLAYED if step in left]:
                return target, f"a replay needs what these steps measure in a later call: {choices(missing)}"
            words = ["lib", "run", *_CHECKED, "--source", "replay", "-p", "reference", machine.name, "--devices",
                     device.partition(":")[0]]  # as runs name their backend
            failure = command_list.call(words, log, _CHECK_S, output=scratch)
    except (InputError, OSError) as error:
        failure = str(error)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target, failure and f"{failure} (see {log})"


def _gpu(options: argparse.Namespace) -> bool:
    """Run the steps; the exit status is 0 once all are done and what they measured replays."""
    command_list.require(_IMPORTED)
    from lib.config import definitions

    plan = definitions.load_gpu_plan()
    command_list.require(plan.needs)
    deadline = time.monotonic() + options.budget_min * 60 - _RESERVED_S
    from lib.measure import machine

    device = str(machine.device(options.device))
    cards = sum(name.partition(":")[0] == device.partition(":")[0] for name in machine.devices())
    folder = paths.DATA / "gpu"
    walk = command_list.Walk(plan.steps, folder, {"device": device, "cards": cards, "slots": options.slots})
    left = walk.run(deadline)
    bundle, failure = _packed(folder, device, left)
    for name, reason in left.items():
        print(f"not done: {name}: {reason}")
    print(f"{bundle}: " + (f"would not replay: {failure}" if failure else
                           "replays as a reference: data unpack FILE, models --train NAME, run -p reference NAME"))
    return bool(left or failure)


def add(verbs) -> None:
    """Add the verb for a machine with a GPU."""
    add_verb(verbs, _gpu, "gpu",
             "measure all that a machine with a GPU can tell, as params/gpu.yaml says, and pack it; a second call resumes",
             option("--device", "device id (default cuda:0)", default="cuda:0"),
             option("--budget-min", "minutes of this call (default 30); what does not fit is left to the next call",
                    number(6, 1440), 30.0),
             option("--slots", "CPU slots of the steps that run jobs (default 1)", whole(1), 1))
