"""Programs that run a network on a CPU as it is predicted, to paste and run; they print the time of a pass."""

from lib.config import definitions
from lib.config.definitions import RUNTIMES
from lib.errors import InputError, choices
from lib.measure import worker
from lib.measure.networks import runtimes
from lib.predict.advice.query import INT8, Query
from lib.work import dtypes
from lib.work.building import timm_models

_FOLDER = "os.chdir(tempfile.mkdtemp())  # for exported files, of this process alone"
_EXPORT = """torch.onnx.export(model, (batch,), "model.onnx", dynamo=True, verbose=False, external_data=False)"""
_QUANTISATION = """from onnxruntime import InferenceSession, quantization
from onnxruntime.quantization import shape_inference"""
_QUANTISE = """class Batches(quantization.CalibrationDataReader):
    name = InferenceSession("model.onnx").get_inputs()[0].name
    batches = iter([{name: batch.numpy()}])  # your data here

    def get_next(self):
        return next(self.batches, None)

shape_inference.quant_pre_process("model.onnx", "fused.onnx", skip_symbolic_shape=True)
quantization.quantize_static("fused.onnx", "int8.onnx", Batches(), per_channel=True, reduce_range=True)"""
_RUN = {
    "torch": "run = lambda: model(batch)",
    "onnxruntime": """options = onnxruntime.SessionOptions()
options.intra_op_num_threads = {threads}
session = onnxruntime.InferenceSession("{file}", options, providers=["CPUExecutionProvider"])
feed = {{session.get_inputs()[0].name: batch.numpy()}}
run = lambda: session.run(None, feed)""",
    "openvino": """how = {{"INFERENCE_NUM_THREADS": {threads}, "INFERENCE_PRECISION_HINT": "{precision}"}}
request = openvino.Core().compile_model("{file}", "CPU", how).create_infer_request()
request.set_input_tensor(openvino.Tensor(batch.numpy(), shared_memory=True))  # once; write new inputs into batch
run = lambda: request.infer()"""}
_TIME = """run(), run()  # warm up
times = []
while len(times) < 20 or sum(times) < 200:
    begin = time.perf_counter()
    run()
    times.append((time.perf_counter() - begin) * 1e3)
print(f"{sorted(times)[len(times) // 2]:.4f} ms")"""


def snippet(query: Query) -> str:
    """Return the program of an inference query; InputError for networks that are neither torchvision's nor timm's."""
    library, at, name = query.model.rpartition(":")
    if query.mode != "infer" or query.model in definitions.workloads() or library not in ("", timm_models.PREFIX):
        raise InputError("--code is for inference of networks of torchvision and timm")
    runtime = query.runtime
    types, of_torch = runtimes.TYPES.get(runtime, ("fp32", *dtypes.AUTOCAST)), query.compiled or query.layout != "contiguous"
    if query.dtype not in types or (of_torch and runtime != RUNTIMES[0]):
        raise InputError(f"{runtime} runs networks in {choices(types)}; --channels-last and --compile are of torch")
    shape, is_int8 = ", ".join(map(str, query.network().shape)), query.dtype == INT8
    build = f'timm.create_model("{name}")' if at else f'torchvision.models.get_model("{name}")'
    threads = query.threads or max(1, worker.usable_cores() // query.instances)
    modules = [library or "torchvision", "torch", *[runtime] * (runtime != RUNTIMES[0])]
    exports = ["import os", "import tempfile"] * (runtime != RUNTIMES[0])
    lines = [*exports, "import time", "", *(f"import {module}" for module in sorted(modules)), *[_QUANTISATION] * is_int8, "",
             f"torch.set_num_threads({threads})", "torch.set_grad_enabled(False)",
             f"model = {build}.eval()  # your weights here", f"batch = torch.randn({shape})"]
    if query.instances > 1:
        firsts = range(0, query.instances * threads, threads)
        cores = [f"taskset -c {first}-{first + threads - 1} python run.py" for first in firsts]
        lines.insert(0, f"# side by side: {' & '.join(cores)}")
    if runtime == RUNTIMES[0]:
        placed = "model, batch = (value.to(memory_format=torch.channels_last) for value in (model, batch))"
        lines += [*[placed] * (query.layout == "channels_last"), *["model = torch.compile(model)"] * query.compiled]
    else:
        lines += [_FOLDER, _EXPORT, *[_QUANTISE] * is_int8]
    precision = "bf16" if query.dtype == "bf16" else "f32"
    run = _RUN[runtime].format(threads=threads, file="int8.onnx" if is_int8 else "model.onnx", precision=precision)
    if runtime == RUNTIMES[0] and query.dtype != "fp32":
        run = f'run = torch.autocast("cpu", torch.{dtypes.torch_name(query.dtype)})(lambda: model(batch))'
    return "\n".join([*lines, run, _TIME])
