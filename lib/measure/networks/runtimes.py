"""Networks in runtimes other than torch: exported to ONNX once, quantised to int8 if asked, run by ONNX Runtime or OpenVINO.

Static quantisation (QDQ, weights per channel) is calibrated on one random batch: it is for times, and claims no accuracy. Input
tensors are set once, before the first pass, as in the program that ``advise --code`` prints.
"""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from lib.config.definitions import ONNXRUNTIME, OPENVINO
from lib.errors import InputError, choices, entry

TYPES = {ONNXRUNTIME: ("fp32", "int8"), OPENVINO: ("fp32", "bf16", "int8")}
TENSORS = "tensors set once"  # how passes get their inputs
_OPENVINO_TYPES = {"fp32": "f32", "int8": "f32", "bf16": "bf16"}  # int8 stands in the file; the rest of it is computed in fp32
Run = Callable[[], Sequence[np.ndarray]]


def load(runtime: str, dtype: str, model: torch.nn.Module, placed: Sequence[torch.Tensor], named: Mapping[str, torch.Tensor],
         stem: Path) -> Run:
    """Return one pass of a model in a runtime on torch's threads; files that begin with ``stem`` are used again if they exist.

    Raises InputError for an element type or package that is missing, whatever the export or the runtime raises otherwise.
    """
    if dtype not in entry(TYPES, runtime, "runtime"):
        raise InputError(f"{runtime} has no {dtype} here; it has {choices(TYPES[runtime])}")
    arrays = [value.contiguous().numpy() for value in (*placed, *named.values())]
    path = stem.with_name(f"{stem.name}.onnx")
    try:
        if not path.exists():
            with _written(path) as new:
                torch.onnx.export(model, tuple(placed), new, kwargs=dict(named), dynamo=True, verbose=False,
                                  external_data=False)
        path = _quantised(path, arrays, stem) if dtype == "int8" else path
        return _LOADERS[runtime](path, arrays, dtype)
    except ModuleNotFoundError as error:
        raise InputError(f"{runtime} needs the package {error.name}: pip install {error.name}") from error


@contextmanager
def _written(path: Path) -> Iterator[Path]:
    """Give a name to write to; the file has its own name only once it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        yield Path(folder) / path.name
        os.replace(Path(folder) / path.name, path)


def _quantised(exported: Path, arrays: Sequence[np.ndarray], stem: Path) -> Path:
    path = stem.with_name(f"{stem.name}-int8.onnx")
    if not path.exists():
        import onnxruntime
        from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static
        from onnxruntime.quantization.shape_inference import quant_pre_process

        class Batch(CalibrationDataReader):
            """One random batch."""

            def __init__(self):
                inputs = onnxruntime.InferenceSession(exported, providers=["CPUExecutionProvider"]).get_inputs()
                self._batches = iter([{entry.name: array for entry, array in zip(inputs, arrays, strict=True)}])

            def get_next(self) -> dict[str, np.ndarray] | None:
                return next(self._batches, None)

        with _written(path) as new:  # 7 bits: without VNNI, sums of 8-bit products overflow
            fused = new.with_name("fused.onnx")
            quant_pre_process(exported, fused, skip_symbolic_shape=True)
            quantize_static(fused, new, Batch(), quant_format=QuantFormat.QDQ, per_channel=True, reduce_range=True)
    return path


def _onnxruntime(path: Path, arrays: Sequence[np.ndarray], _: str) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feed = {entry.name: array for entry, array in zip(session.get_inputs(), arrays, strict=True)}
    return lambda: session.run(None, feed)


def _openvino(path: Path, arrays: Sequence[np.ndarray], dtype: str) -> Run:
    sys.modules.setdefault("openvino_telemetry", None)  # it reports from a process that takes a core for the first two seconds
    import openvino

    wanted = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": torch.get_num_threads(),
              "INFERENCE_PRECISION_HINT": _OPENVINO_TYPES[dtype]}
    core = openvino.Core()
    if dtype == "bf16" and "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        raise InputError("openvino computes bf16 as fp32 on this CPU, which has no instructions for it")
    request = core.compile_model(path, "CPU", wanted).create_infer_request()
    tensors = [openvino.Tensor(array, shared_memory=True) for array in arrays]
    for number, tensor in enumerate(tensors):  # once: to pass inputs with each call takes 0.1 ms more
        request.set_input_tensor(number, tensor)
    return lambda _=(tensors, arrays): list(request.infer().values())  # whose memory the request shares


_LOADERS = {ONNXRUNTIME: _onnxruntime, OPENVINO: _openvino}
