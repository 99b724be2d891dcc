"""Programs that run a network on a CPU as it is predicted, to paste; they print the time of a pass."""

from lib.config import definitions
from lib.errors import InputError
from lib.measure import worker
from lib.predict.advice import query
from lib.work.building import timm_models
from lib.work.run_config import RunConfig
from lib.work.runtimes import runtime_of

_TIME = """run(), run()  # warm up
times = []
while len(times) < 20 or sum(times) < 200:
    begin = time.perf_counter()
    run()
    times.append((time.perf_counter() - begin) * 1e3)
print(f"{sorted(times)[len(times) // 2]:.4f} ms")"""


def snippet(config: RunConfig) -> str:
    """Return the program of an inference; InputError for networks of neither torchvision nor timm."""
    library, at, name = config.network.rpartition(":")
    is_known = library in ("", timm_models.PREFIX) and config.network not in definitions.workloads()
    if config.mode != "infer" or not is_known:
        raise InputError("--code is for inference of networks of torchvision and timm")
    query.check(config)
    if config.gpus > 1:
        raise InputError(f"--code is for one device, not {config.gpus} GPUs")
    imports, run = runtime_of(config).example_program(config)
    build = f'timm.create_model("{name}")' if at else f'torchvision.models.get_model("{name}")'
    threads = config.threads or max(1, worker.usable_cores() // config.instances)
    shape = ", ".join(map(str, config.loaded().shape))
    lines = []
    if config.instances > 1:
        firsts = range(0, config.instances * threads, threads)
        cores = [f"taskset -c {first}-{first + threads - 1} python run.py" for first in firsts]
        lines.append(f"# side by side: {' & '.join(cores)}")
    lines += sorted([*imports, "import time", "import torch", f"import {library or 'torchvision'}"])
    lines += ["", f"torch.set_num_threads({threads})", "torch.set_grad_enabled(False)",
              f"model = {build}.eval()  # your weights here", f"batch = torch.randn({shape})"]
    return "\n".join([*lines, run, _TIME])
