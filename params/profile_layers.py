#!/usr/bin/env python3
"""Time the layers of a TensorRT engine, each run with a time stamp, so that a power log can be mapped to the layers.

    python3 profile_layers.py NETWORK.engine FOLDER [--runs 10000] [--shape INPUT=1x3x224x224]

FOLDER then holds ``trt_engine_info.json`` (the engine's layers) and ``trt_layer_latency.json``
(``{layer: [[ms, "YYYYMMDD-HH:MM:SS.ffffff"], ...]}``, one entry per run). For power, let collect_power.py start this program:

    python3 collect_power.py raw_data/resnet18 -- python3 profile_layers.py resnet18.engine raw_data/resnet18

Build the engine with details of its layers: trtexec --onnx=... --saveEngine=... --profilingVerbosity=detailed.

A time stamp is when the layer ended, in local time. TensorRT reports the times of all layers after a run: the last layer ends
when the first report arrives, and each earlier layer ends where the next one starts. The engine's
first optimisation profile is run. The profiler slows a run down.

Needs Python 3.8, TensorRT 8.5 or later with its Python package, numpy, and the CUDA runtime. Written from the documented
interface; never run on a board.
"""

import argparse
import ctypes
import json
import math
import re
import sys
from datetime import datetime, timedelta
from pathlib import Path

STAMP = "%Y%m%d-%H:%M:%S.%f"
ENGINE, LATENCY = "trt_engine_info.json", "trt_layer_latency.json"
LIBRARIES = ("libcudart.so", "libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0",
             "/usr/local/cuda/lib64/libcudart.so")
HOST_TO_DEVICE = 1
now = datetime.now


class InputError(Exception):
    """What is wrong, in one line."""


class Cuda:
    """The five functions of the CUDA runtime that are needed; InputError where one fails."""

    def __init__(self):
        for name in LIBRARIES:
            try:
                self._library = ctypes.CDLL(name)
                break
            except OSError:
                continue
        else:
            raise InputError("the CUDA runtime is not found: add the folder of libcudart.so to LD_LIBRARY_PATH")

    def _call(self, name, *arguments):
        status = getattr(self._library, name)(*arguments)
        if status:
            raise InputError(f"{name} failed with CUDA error {status}")

    def memory(self, size):
        """Return the address of new memory on the device, filled with zeros."""
        address = ctypes.c_void_p()
        self._call("cudaMalloc", ctypes.byref(address), ctypes.c_size_t(max(size, 1)))
        self._call("cudaMemset", address, ctypes.c_int(0), ctypes.c_size_t(max(size, 1)))
        return address.value

    def copy(self, address, array):
        """Copy a numpy array to an address on the device."""
        self._call("cudaMemcpy", ctypes.c_void_p(address), ctypes.c_void_p(array.ctypes.data),
                   ctypes.c_size_t(array.nbytes), ctypes.c_int(HOST_TO_DEVICE))

    def stream(self):
        """Return the handle of a new stream."""
        handle = ctypes.c_void_p()
        self._call("cudaStreamCreate", ctypes.byref(handle))
        return handle.value

    def wait(self, stream):
        """Wait until all work of a stream is done."""
        self._call("cudaStreamSynchronize", ctypes.c_void_p(stream))


def layer_profiler(trt):
    """Return a profiler that keeps the layers of the current run, (name, ms), and when the first one was reported."""

    class LayerProfiler(trt.IProfiler):
        def __init__(self):
            trt.IProfiler.__init__(self)
            self.layers, self.reported = [], None

        def report_layer_time(self, layer_name, ms):
            self.reported = self.reported or now()
            self.layers.append((layer_name, ms))

    return LayerProfiler()


def add_run(log, profiler):
    """Add the run that a profiler holds to ``log``, {layer: [[ms, time stamp], ...]}, and empty the profiler."""
    if not profiler.layers:
        raise InputError("TensorRT reported no layer after a run: this version has no profiler for it")
    end, stamped = profiler.reported, []
    for name, ms in reversed(profiler.layers):
        stamped.append((name, [ms, end.strftime(STAMP)]))
        end -= timedelta(milliseconds=ms)
    for name, entry in reversed(stamped):
        log.setdefault(name, []).append(entry)
    profiler.layers, profiler.reported = [], None


def load(trt, path):
    """Return the engine in a file."""
    trt.init_libnvinfer_plugins(None, "")
    runtime = trt.Runtime(trt.Logger(trt.Logger.WARNING))
    try:
        engine = runtime.deserialize_cuda_engine(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    if engine is None:
        raise InputError(f"{path} is no engine of this TensorRT ({trt.__version__}) and GPU: build it here with trtexec "
                         "--saveEngine")
    if not hasattr(engine, "num_io_tensors"):
        raise InputError(f"TensorRT {trt.__version__} is too old: 8.5 or later is needed")
    return runtime, engine


def input_shape(engine, name, shapes):
    """Return the shape of an input: the user's, else the engine's, else the one that it was optimised for."""
    fixed = tuple(engine.get_tensor_shape(name))
    if name in shapes:
        return shapes[name]
    return fixed if -1 not in fixed else tuple(engine.get_tensor_profile_shape(name, 0)[1])


def input_size(engine, name, shape):
    """Return the bytes of an input with the padding of its format."""
    sizes, axis = list(shape), engine.get_tensor_vectorized_dim(name)
    if axis >= 0:
        width = engine.get_tensor_components_per_element(name)
        sizes[axis] = -(-sizes[axis] // width) * width
    return math.ceil(math.prod(sizes) * engine.get_tensor_dtype(name).itemsize)


def fill(trt, cuda, engine, name, shape, address):
    """Fill an input of FP32 or FP16 with random numbers from 0 to 1; others stay 0, and that is printed."""
    import numpy

    dtype = engine.get_tensor_dtype(name)
    if dtype not in (trt.DataType.FLOAT, trt.DataType.HALF):
        print(f"input {name} is 0 in every run: random numbers are made for FP32 and FP16, not for {dtype}", file=sys.stderr)
        return
    numbers = numpy.random.default_rng(0).random(shape, dtype=numpy.float32)
    cuda.copy(address, numpy.ascontiguousarray(numbers.astype(trt.nptype(dtype))))


def tensors(trt, engine, shapes):
    """Return the names of the inputs and of the outputs; refuse shapes of other names, and tensors outside of the device."""
    names = [engine.get_tensor_name(number) for number in range(engine.num_io_tensors)]
    inputs = [name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT]
    for name in shapes:
        if name not in inputs:
            raise InputError(f"the engine has no input {name}; its inputs are: {', '.join(inputs)}")
    for name in names:
        if engine.get_tensor_location(name) != trt.TensorLocation.DEVICE:
            raise InputError(f"{name} lies in the memory of the host: such an engine is not supported")
    return inputs, [name for name in names if name not in inputs]


def prepare(trt, cuda, engine, options):
    """Return an execution context with shapes and memory for all inputs and outputs."""
    context = engine.create_execution_context()
    if context is None:
        raise InputError("TensorRT could not make a context of the engine; its message is above")
    inputs, outputs = tensors(trt, engine, options.shape)
    for name in inputs:
        shape = input_shape(engine, name, options.shape)
        if not context.set_input_shape(name, shape):
            raise InputError(f"input {name} does not take the shape {'x'.join(map(str, shape))}")
        address = cuda.memory(input_size(engine, name, shape))
        fill(trt, cuda, engine, name, shape, address)
        context.set_tensor_address(name, address)
    for name in outputs:
        size = context.get_max_output_size(name)
        if size < 0:
            raise InputError(f"the size of output {name} is not known")
        context.set_tensor_address(name, cuda.memory(size))
    return context


def information(trt, engine, context, path):
    """Return what the engine says of its layers, with the context's shapes."""
    inspector = engine.create_engine_inspector()
    inspector.execution_context = context
    content = json.loads(inspector.get_engine_information(trt.LayerInformationFormat.JSON), strict=False)
    if not all(isinstance(layer, dict) for layer in content.get("Layers", [""])):
        raise InputError(f"{path} names its layers without details: build it with trtexec --profilingVerbosity=detailed")
    return content


def run(context, stream, cuda, times):
    """Run the engine some times, one run after the other; yield after each."""
    for _ in range(times):
        if not context.execute_async_v3(stream):
            raise InputError("TensorRT could not run the engine; its message is above")
        cuda.wait(stream)
        yield


def profile(options):
    """Profile the engine; return the contents of the two files by their names."""
    try:
        import tensorrt as trt
    except ImportError as error:
        raise InputError(f"the Python package tensorrt is not there ({error}); it comes with TensorRT") from None
    cuda = Cuda()
    stream = cuda.stream()
    runtime, engine = load(trt, options.engine)  # the runtime lives as long as the engine
    context = prepare(trt, cuda, engine, options)
    layers = information(trt, engine, context, options.engine)
    for _ in run(context, stream, cuda, options.warmup):
        pass
    context.profiler = profiler = layer_profiler(trt)
    log = {}
    for _ in run(context, stream, cuda, options.runs):
        add_run(log, profiler)
    del context, engine, runtime
    return {ENGINE: layers, LATENCY: log}


def shape_of(text):
    """Read INPUT=1x3x224x224."""
    found = re.fullmatch(r"(.+)=(\d+(?:x\d+)*)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not INPUT=1x3x224x224")
    return found[1], tuple(map(int, found[2].split("x")))


def parse(arguments):
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine", type=Path, help="a serialised engine, as trtexec --saveEngine writes it")
    parser.add_argument("folder", type=Path, help="where the two files are written; nothing there is overwritten")
    parser.add_argument("--runs", type=int, default=10000, help="runs that are logged (default 10000)")
    parser.add_argument("--warmup", type=int, default=50, help="runs before, which are not logged (default 50)")
    parser.add_argument("--shape", type=shape_of, action="append", default=[], metavar="INPUT=1x3x224x224",
                        help="the shape of an input (default: what it was optimised for)")
    options = parser.parse_args(arguments)
    if options.runs < 1 or options.warmup < 0:
        parser.error("--runs is 1 or more, --warmup is 0 or more")
    options.shape = dict(options.shape)
    return options


def main(arguments):
    """Profile an engine and write its files; return the exit status."""
    options = parse(arguments)
    try:
        for name in (ENGINE, LATENCY):
            if (options.folder / name).exists():
                raise InputError(f"{options.folder / name} exists already and is not overwritten")
        contents = profile(options)
        options.folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            with open(str(options.folder / name), "x", encoding="utf-8") as file:
                json.dump(content, file)
    except (InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{options.folder / LATENCY}: {len(contents[LATENCY])} names of layers, {options.runs} runs", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
