"""ONNX Runtime on the CPU, in fp32 or quantised to int8."""

from collections.abc import Callable
from pathlib import Path

from lib.work.runtimes import onnx_files

NAME = "onnxruntime"
DTYPES = ("fp32", "int8")
IS_TORCH = False
INPUTS = "arrays passed in each call"
_PROGRAM = """options = onnxruntime.SessionOptions()
options.intra_op_num_threads = torch.get_num_threads()
session = onnxruntime.InferenceSession("{file}", options, providers=["CPUExecutionProvider"])
feed = {{session.get_inputs()[0].name: batch.numpy()}}
run = lambda: session.run(None, feed)"""


def prepare(model, inputs: tuple[list, dict], config, folder: Path) -> Callable[[], list]:
    """Return a pass of the exported model on as many threads as torch has."""
    import torch

    with onnx_files.needing_packages(NAME):
        import onnxruntime

        path, arrays = onnx_files.exported(model, inputs, config, folder)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 3
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feed = {one.name: array for one, array in zip(session.get_inputs(), arrays, strict=True)}
    return lambda: session.run(None, feed)


def example_program(config) -> tuple[list[str], str]:
    """Return what a program imports, and its lines from the model to a pass."""
    imports, lines, file = onnx_files.example_export(config)
    return [*imports, "import onnxruntime"], f"{lines}\n{_PROGRAM.format(file=file)}"
