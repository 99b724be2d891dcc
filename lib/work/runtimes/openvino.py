"""OpenVINO on the CPU, in fp32, in bf16 where the CPU computes it, or quantised to int8.

To pass inputs with each call instead of setting them once takes 0.1 ms more.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from lib.errors import InputError
from lib.work.runtimes import onnx_files

NAME = "openvino"
DTYPES = ("fp32", "bf16", "int8")
IS_TORCH = False
INPUTS = "tensors set once"  # how passes get them: before the first one
# int8 stands in the file; the rest of it is computed in fp32
_PRECISIONS = {"fp32": "f32", "int8": "f32", "bf16": "bf16"}
_PROGRAM = """hints = {{"INFERENCE_NUM_THREADS": torch.get_num_threads(),
         "INFERENCE_PRECISION_HINT": "{precision}"}}
request = openvino.Core().compile_model("{file}", "CPU", hints).create_infer_request()
tensor = openvino.Tensor(batch.numpy(), shared_memory=True)
request.set_input_tensor(tensor)  # once; write new inputs into batch
run = lambda: request.infer()"""


def prepare(model, inputs: tuple[list, dict], config, folder: Path) -> Callable[[], list]:
    """Return a pass of the exported model on as many threads as torch has.

    Raises InputError for bf16 on a CPU without instructions for it.
    """
    import torch

    # it reports from a process that takes a core for the first two seconds
    sys.modules.setdefault("openvino_telemetry", None)
    with onnx_files.needing_packages(NAME):
        import openvino

        path, arrays = onnx_files.exported(model, inputs, config, folder)
    core = openvino.Core()
    if config.dtype == "bf16" and "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        raise InputError("openvino computes bf16 as fp32 on this CPU, which has no instructions for it")
    hints = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": torch.get_num_threads(),
             "INFERENCE_PRECISION_HINT": _PRECISIONS[config.dtype]}
    request = core.compile_model(path, "CPU", hints).create_infer_request()
    tensors = [openvino.Tensor(array, shared_memory=True) for array in arrays]
    for number, tensor in enumerate(tensors):
        request.set_input_tensor(number, tensor)

    def run(_shared=(tensors, arrays)) -> list:  # the request reads their memory
        return list(request.infer().values())

    return run


def example_program(config) -> tuple[list[str], str]:
    """Return what a program imports, and its lines from the model to a pass."""
    imports, lines, file = onnx_files.example_export(config)
    program = _PROGRAM.format(file=file, precision=_PRECISIONS[config.dtype])
    return [*imports, "import openvino"], f"{lines}\n{program}"
