"""Training by several processes, or one: accelerate, torchrun, and states to resume from."""

import atexit
import os
import pkgutil
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from lib import executed_notebooks, files, locks, paths, store
from lib.errors import InputError, death, refused

PROGRESS = "progress.json"


def process_count() -> int:
    """Return how many processes torchrun started for this run; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_device(name: str) -> str:
    """Return the device of this process: ``name``; of several processes each has its own GPU."""
    several = process_count() > 1 and name.startswith("cuda")
    return f"cuda:{os.environ['LOCAL_RANK']}" if several else name


def accelerator(device: str, seed: int) -> Any:
    """Return the ``accelerate.Accelerator`` of this process, joined with those of torchrun.

    Each batch is split over the processes. The training loop itself places batches and casts, since
    it measures these phases. Processes stay joined until they end.
    """
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration, DistributedDataParallelKwargs

    loaders = DataLoaderConfiguration(split_batches=True, use_seedable_sampler=True, data_seed=seed)
    unused = DistributedDataParallelKwargs(find_unused_parameters=True)
    several = process_count() > 1
    made = Accelerator(cpu=device == "cpu" and several, device_placement=False,
                       mixed_precision="no", dataloader_config=loaders, kwargs_handlers=[unused])
    if several:
        atexit.register(made.state.destroy_process_group)
    return made


def first_value(value: Any) -> Any:
    """Return the first process's value in all of them; each calls this, after ``accelerator``."""
    from accelerate.utils import broadcast_object_list

    return broadcast_object_list([value])[0]


def gathered_sums(values: list[float]) -> list[float]:
    """Return the sums of numbers over all processes; each process calls this with as many."""
    from accelerate.utils import gather_object

    return [sum(numbers) for numbers in zip(*gather_object([values]), strict=True)]


def states(folder: Path) -> list[Path]:
    """Return the saved states of a run, the oldest first."""
    return sorted(folder.glob("state-*"))


def save_state(accelerator: Any, folder: Path, name: str, progress: dict[str, Any]) -> None:
    """Write the state ``state-<name>`` in one step, and remove older states.

    All processes call this. A state is what accelerate saves, and ``progress`` as JSON. Raises
    InputError on a full disk: the older state stays.
    """
    from lib.work import weights

    target, partial = folder / f"state-{name}", folder / ".state.partial"
    if accelerator.is_main_process:
        shutil.rmtree(partial, ignore_errors=True)
        files.folder(partial)
    accelerator.wait_for_everyone()
    try:
        with weights.writing(target):
            accelerator.save_state(str(partial), safe_serialization=False)
    except InputError:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        store.write_json({"processes": accelerator.num_processes, **progress}, partial / PROGRESS)
        with files.writing(target):
            partial.rename(target)
        for older in states(folder)[:-1]:
            shutil.rmtree(older, ignore_errors=True)


def load_state(accelerator: Any, folder: Path) -> dict[str, Any]:
    """Load the newest state in a folder; return its progress, empty where there is no state.

    Raises InputError for a damaged state, or one of another model or number of processes.
    """
    from accelerate.utils import load

    if not (saved := states(folder)):
        return {}
    with refused(f"{saved[-1]} is no state of this run: "):
        progress = store.read_json(saved[-1] / PROGRESS)
        if (processes := progress.pop("processes")) != accelerator.num_processes:
            raise InputError(f"{saved[-1]} is of {processes} processes, not "
                             f"{accelerator.num_processes}; resume with as many")
        # load_state goes on without random generators that it cannot load
        load(saved[-1] / f"random_states_{accelerator.process_index}.pkl")
        accelerator.load_state(str(saved[-1]))
    return progress


def torchrun(call: str, arguments: dict[str, Any], devices: list[str],
             threads: int) -> dict[str, Any]:
    """Call ``package.module:function`` in one process per device; return the first one's result.

    The function takes the arguments, ``devices`` (its own) and ``threads``. Its processes end with
    this one. Raises the InputError of a process; RuntimeError where one died.
    """
    variables = {"OMP_NUM_THREADS": str(threads)} if threads else {}
    if devices[0].startswith("cuda"):  # the processes see no other GPU
        numbers = [int(device.removeprefix("cuda:")) for device in devices]
        variables[locks.MASK] = ",".join(map(locks.card, numbers))
    with tempfile.TemporaryDirectory() as home:
        task, outcome = Path(home) / "task.json", Path(home) / "outcome.json"
        store.write_json({"call": call, "device": devices[0],
                          "arguments": {**arguments, "threads": threads}}, task)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone",
                   "--nproc-per-node", str(len(devices)), "-m", __name__, str(task), str(outcome)]
        with subprocess.Popen(
                command, cwd=paths.ROOT, env={**os.environ, **variables}, text=True,
                stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
                preexec_fn=executed_notebooks.end_with_parent) as process:  # noqa: PLW1509
            try:
                _, errors = process.communicate()
            except BaseException:
                process.terminate()  # torchrun then ends its processes, at last by force
                raise
        ended = store.read_json(outcome) if outcome.exists() else {}
    if "refused" in ended:
        raise InputError(ended["refused"])
    if process.returncode or not ended:
        sys.stderr.write(errors)
        raise RuntimeError(f"training on {len(devices)} devices {death(process.returncode)}")
    return ended["result"]


def _run_task(task: Path, outcome: Path) -> None:
    """Carry out a task of ``torchrun`` in one of its processes."""
    content = store.read_json(task)
    function, device = pkgutil.resolve_name(content["call"]), local_device(content["device"])
    try:
        result = function(**content["arguments"], devices=[device])
    except InputError as error:
        store.write_json({"refused": str(error)}, outcome)
        sys.exit(1)
    if os.environ["RANK"] == "0":
        store.write_json({"result": result}, outcome)


if __name__ == "__main__":
    _run_task(Path(sys.argv[1]), Path(sys.argv[2]))
