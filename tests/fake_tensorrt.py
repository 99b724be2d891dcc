"""A stand-in for TensorRT's Python package and the CUDA runtime: an engine whose layers take known times, on a known clock."""

import ctypes
import json
from datetime import timedelta
from types import ModuleType, SimpleNamespace

import numpy as np

GAP_MS = 5.0  # between two runs


def package(layers, times_ms, clock):
    """Return a module ``tensorrt`` with one engine; ``clock``: a list whose last element is the time of day.

    ``layers``: what the inspector says of them; ``times_ms``: how long each takes, in the order of ``layers``.
    """
    trt = ModuleType("tensorrt")
    trt.__version__ = "10.3.0"
    trt.TensorIOMode = SimpleNamespace(INPUT="input", OUTPUT="output")
    trt.TensorLocation = SimpleNamespace(DEVICE="device", HOST="host")
    trt.LayerInformationFormat = SimpleNamespace(JSON="json")
    trt.DataType = SimpleNamespace(FLOAT=SimpleNamespace(itemsize=4), HALF=SimpleNamespace(itemsize=2))
    trt.Logger = type("Logger", (), {"WARNING": "warning", "__init__": lambda self, level: None})
    trt.nptype = lambda dtype: np.float32
    trt.init_libnvinfer_plugins = lambda logger, namespace: True
    trt.IProfiler = type("IProfiler", (), {"__init__": lambda self: None})

    class Context:
        def __init__(self):
            self.profiler, self.shape, self.addresses = None, None, {}

        def set_input_shape(self, name, shape):
            self.shape = shape
            return shape[1:] == (8, 16, 16)

        def get_max_output_size(self, name):
            return 40 if self.shape else -1

        def set_tensor_address(self, name, address):
            self.addresses[name] = address

        def execute_async_v3(self, stream):
            assert set(self.addresses) == {"input", "output"} and all(self.addresses.values()), "each tensor has memory"
            clock.append(clock[-1] + timedelta(milliseconds=GAP_MS + sum(times_ms)))
            for layer, ms in zip(layers, times_ms, strict=True) if self.profiler else ():
                self.profiler.report_layer_time(layer["Name"], ms)
                clock.append(clock[-1] + timedelta(microseconds=3))  # a report takes time of its own
            return True

    class Inspector:
        execution_context = None

        def get_engine_information(self, style):
            assert self.execution_context.shape, "shapes are known where a context is inspected"
            return json.dumps({"Layers": layers, "Bindings": ["input", "output"]})

    trt.Runtime = lambda logger: SimpleNamespace(deserialize_cuda_engine=lambda content: None if content == b"other" else (
        SimpleNamespace(
            num_io_tensors=2, get_tensor_name=["input", "output"].__getitem__,
            get_tensor_mode=lambda name: name, get_tensor_location=lambda name: "device",
            get_tensor_shape=lambda name: (-1, 8, 16, 16), get_tensor_profile_shape=lambda name, number: [
                (1, 8, 16, 16), (1, 8, 16, 16), (4, 8, 16, 16)],
            get_tensor_vectorized_dim=lambda name: 1, get_tensor_components_per_element=lambda name: 32,
            get_tensor_dtype=lambda name: trt.DataType.FLOAT, create_execution_context=Context,
            create_engine_inspector=Inspector)))
    return trt


def cuda(name):
    """Return the functions of libcudart, on memory of the host."""
    kept = []

    def malloc(address, size):
        kept.append(ctypes.create_string_buffer(size.value))
        address._obj.value = ctypes.addressof(kept[-1])
        return 0

    def memcpy(target, source, size, kind):
        assert size.value == 4 * 8 * 16 * 16 and kind.value == 1
        return 0

    def stream(handle):
        handle._obj.value = 7
        return 0

    return SimpleNamespace(cudaMalloc=malloc, cudaMemcpy=memcpy, cudaStreamCreate=stream,
                           cudaMemset=lambda address, value, size: 0, cudaStreamSynchronize=lambda handle: 0)
