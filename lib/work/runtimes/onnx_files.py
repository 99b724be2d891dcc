"""Networks exported to ONNX once, and quantised to int8: the files of runtimes other than torch.

Static quantisation (QDQ, weights per channel) is calibrated on one random batch: it is for times, and
claims no accuracy.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lib import files
from lib.errors import InputError

_EXPORT = """os.chdir(tempfile.mkdtemp())  # for exported files, of this process alone
torch.onnx.export(model, (batch,), "model.onnx", dynamo=True, verbose=False, external_data=False)"""
_QUANTISE = """class Batches(quantization.CalibrationDataReader):
    name = InferenceSession("model.onnx").get_inputs()[0].name
    batches = iter([{name: batch.numpy()}])  # your data here

    def get_next(self):
        return next(self.batches, None)

shape_inference.quant_pre_process("model.onnx", "fused.onnx", skip_symbolic_shape=True)
quantization.quantize_static("fused.onnx", "int8.onnx", Batches(), per_channel=True, reduce_range=True)"""


@contextmanager
def needing_packages(runtime: str) -> Iterator[None]:
    """Raise InputError, which names the package, where one that a runtime needs is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise InputError(f"{runtime} needs the package {error.name}: pip install {error.name}") from error


def exported(model, inputs: tuple[list, dict], config, folder: Path) -> tuple[Path, list]:
    """Return the file of a model in its element type, kept in ``folder``, and its inputs as arrays."""
    import torch

    placed, named = inputs
    arrays = [value.contiguous().numpy() for value in (*placed, *named.values())]
    name = files.safe_name(
        f"{config.network} {config.batch_size} {config.input_shape} {torch.__version__}")
    path = folder / f"{name}.onnx"
    if not path.exists():
        with files.whole(path) as new:
            torch.onnx.export(model, tuple(placed), new, kwargs=dict(named), dynamo=True,
                              verbose=False, external_data=False)
    if config.dtype != "int8":
        return path, arrays
    quantised = folder / f"{name}-int8.onnx"
    if not quantised.exists():
        with files.whole(quantised) as new:
            _quantise(path, arrays, new)
    return quantised, arrays


def _quantise(path: Path, arrays: Sequence, new: Path) -> None:
    import onnxruntime
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class OneBatch(CalibrationDataReader):
        """One random batch."""

        def __init__(self):
            session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
            names = [one.name for one in session.get_inputs()]
            self._batches = iter([dict(zip(names, arrays, strict=True))])

        def get_next(self) -> dict | None:
            return next(self._batches, None)

    fused = new.with_name("fused.onnx")
    quant_pre_process(path, fused, skip_symbolic_shape=True)
    # 7 bits: without VNNI, sums of 8-bit products overflow
    quantize_static(fused, new, OneBatch(), quant_format=QuantFormat.QDQ, per_channel=True,
                    reduce_range=True)


def example_export(config) -> tuple[list[str], str, str]:
    """Return imports, lines and the file's name of a program that exports its model."""
    imports = ["import os", "import tempfile"]
    if config.dtype != "int8":
        return imports, _EXPORT, "model.onnx"
    imports += ["from onnxruntime import InferenceSession, quantization",
                "from onnxruntime.quantization import shape_inference"]
    return imports, f"{_EXPORT}\n{_QUANTISE}", "int8.onnx"
