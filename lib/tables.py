"""The tables: every column with its type, meaning and allowed values, checked strictly on write and on read."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lib.columns import Column, Columns, validated
from lib.errors import choices, entry

SCHEMA_VERSION = "5"
NO_ENERGY = "measured before power was recorded"


def _of_kind(kind: str, least: float | None = None, **usual: Any) -> Callable[..., Column]:
    def make(name: str, meaning: str, least: float | None = least, **options: Any) -> Column:
        return Column(name, kind, meaning, least, **{**usual, **options})
    return make


def _text(name: str, meaning: str, *of: str, **options: Any) -> Column:
    return Column(name, "text", meaning, of=of, **options)


_int, _float, _single, _bool = _of_kind("int", 0), _of_kind("float", 0), _of_kind("single", 0), _of_kind("bool")
_count = _of_kind("count", 1, empty=True)
_NAN = float("nan")


def _each(make: Callable[..., Column], meanings: dict[str, str], *options: Any, **named: Any) -> Columns:
    """Return several columns of one kind: ``meanings`` by name."""
    return tuple(make(name, meaning, *options, **named) for name, meaning in meanings.items())


def _later(column: Column, default: float | str, since: int = 2) -> Column:
    """Return a column that came with a later schema version; ``default`` is what it is in older files."""
    return replace(column, since=since, default=default)


_TF32 = _later(_bool("tf32", "whether fp32 may have been multiplied as TF32 on a GPU"), False, 3)
_IDS = (_text("hardware_id", "which machine: a hash of its hardware"),
        _text("software_id", "which software: a hash of versions, threads and math settings"))
_VERDICT = _text("verdict", "how far to trust the row", "stable", "noisy", "unusable")

_BACKEND = _text("backend", "device type", "cpu", "cuda", "mps")
_DEVICE = _text("device", "device id: cpu, cuda:0 or mps")
_DTYPE = _text("dtype", "element type")
_PRECISION = _text("precision", "fp32, or the autocast type", "fp32", "bf16", "fp16")
_THREADS = _int("threads", "torch CPU threads", 1)
_MODEL = _text("arch", "model name")
_BATCH = _int("batch_size", "samples per batch", 1)
_CONFIG = _text("config", "hash of the configuration: what is measured and how")
_OP = _text("op", "operator family")
_WORK = (_float("flops", "FLOPs from the shapes", empty=True), _float("bytes", "compulsory bytes from the shapes", empty=True))
_INTERVAL = (_float("low_ms", "90 % interval, low end", empty=True), _float("high_ms", "90 % interval, high end", empty=True))
_LEARNER = _text("learner", "name of the learner")

# how an energy was got
ENERGY = (
    _later(_float("power_w", "mean power during the measurement, idle power included; empty: not measured",
                  empty=True), _NAN),
    _later(_float("idle_w", "idle power, logged in the same session; empty: not measured", empty=True), _NAN),
    _later(_text("energy_method", "the meter and its reading (energy counter, or integrated power), or not measured",
                 empty=True), "not measured"),
    _later(_count("energy_n", "samples of the meter during the measurement", 0), 0),
    _later(_float("energy_disagreement", "integrated power / energy counter - 1; empty unless both were read", None,
                  empty=True), _NAN),
    _later(_text("energy_reason", "why there is no energy; empty where there is", empty=True), NO_ENERGY))

_DATA_SOURCE = _text("data_source", "source of the images; unofficial: a file with the name of a MedMNIST file and other "
                     "content", "medmnist", "synthetic", "imagefolder", "unofficial")

PROFILE = (
    *_each(_text, {"run_id": "the run, also the start of the file's name", "workload_id": "id in params/workloads.yaml",
        "dataset": "MedMNIST flag or imagefolder", "model": "model name"}),
    _text("task_type", "what the pass does", "train", "eval", "test"),
    _text("split", "which part of the dataset", "train", "val", "test"), _int("epoch", "epoch from 0; -1 in evaluation", -1),
    *_each(_int, {"batch_idx": "batch within the pass", "global_step": "batches of this pass type so far"}),
    *_each(_int, {"batch_size": "samples in this batch", "channels": "input channels", "dim1": "H (2D) or D (3D)",
        "dim2": "W (2D) or H (3D)"}, 1),
    _int("dim3", "0 (2D) or W (3D)"), replace(_BACKEND, name="device_type"), _int("device_index", "-1 on the CPU", -1),
    _int("num_workers", "loader worker processes"), _PRECISION,
    *_each(_float, {"data_time_ms": "loader wait + host-to-device copy", "forward_time_ms": "forward pass and loss",
        "backward_time_ms": "backward pass; 0 in evaluation",
        "step_time_ms": "the whole step, timed independently; its phases sum to it",
        "data_time_pct": "data_time_ms / step_time_ms * 100", "forward_time_pct": "forward_time_ms / step_time_ms * 100",
        "backward_time_pct": "backward_time_ms / step_time_ms * 100", "images_per_sec": "batch_size / step time"}),
    _float("loss", "loss of this batch", None, empty=True), _float("lr", "learning rate; empty in evaluation", empty=True),
    *_each(_float, {"cuda_mem_alloc_mb": "allocated by torch on the GPU; 0 elsewhere",
        "cuda_mem_reserved_mb": "reserved by torch on the GPU; 0 elsewhere", "wall_time_s": "seconds since the pass began",
        "loader_wait_ms": "waiting for the data loader", "h2d_ms": "host-to-device copy and conversion",
        "optimizer_ms": "optimizer step and zeroing of gradients; 0 in evaluation"}),
    *_each(_float, {"pipelined_ms": "mean step of an unsynchronised, unprofiled pass of the same run; empty where not run",
        "energy_j": "energy of the step, idle power included; empty: not measured"}, empty=True),
    _float("peak_rss_mb", "peak resident memory of the process so far"), _THREADS,
    _bool("warmup", "a warm-up row: stays in the file, but enters no statistic"),
    _text("sync", "how phases were clocked", "none", "event", "synchronize"), _DATA_SOURCE, *_IDS, _TF32)

RUNS = (
    *_each(_text, {"run_id": "the run", "label": "the run's name for people", "timestamp": "UTC start, ISO 8601",
        "hostname": "machine name"}),
    _MODEL, _BACKEND, _text("device_name", "processor or GPU name"), _BATCH,
    _int("warmup_iters", "warm-up batches, not counted"), _int("measured_iters", "batches of the unsynchronised pass", 1),
    _PRECISION,
    *_each(_float, {"elapsed_sec": "the unsynchronised pass, synchronised before and after",
        "images_per_sec": "images_processed / elapsed_sec"}),
    _int("images_processed", "images in elapsed_sec", 1),
    *_each(_text, {"workload_id": "id in params/workloads.yaml", "dataset": "MedMNIST flag or imagefolder"}),
    _DATA_SOURCE, _text("resolution", "native or resized", "native", "resized"), _bool("channels_last", "switch"),
    _int("grad_accum_steps", "switch", 1), _int("num_workers", "switch"), _bool("pin_memory", "switch"),
    _int("prefetch_factor", "switch; 0 without workers"),
    *_each(_bool, {"augment": "switch", "deterministic": "switch", "cudnn_benchmark": "switch",
        "tf32": "TF32 allowed on the device"}),
    _THREADS, _int("seed", "random seed"),
    *_each(_float, {"cpu_percent": "CPU time of this process and its workers, % of one core",
        "peak_rss_mb": "peak resident memory of the process",
        "other_cpu_cores": "CPU cores used by other processes during the measurement",
        "involuntary_switches_per_s": "involuntary context switches per second"}),
    *_each(_float, {"step_median_ms": "median profiled training step, full batches, warm-up left out",
        "step_iqr_ms": "its interquartile range", "step_low_ms": "95 % bootstrap interval of the median, low end",
        "step_high_ms": "95 % bootstrap interval of the median, high end"}, empty=True),
    _int("step_n", "steps in that median"), _VERDICT, _text("reason", "why it is not stable; empty when it is", empty=True),
    *_IDS,
    _later(_float("image_j", "energy of training on one image, in the unsynchronised pass, idle power included; empty: not "
                  "measured", empty=True), _NAN),
    *ENERGY, _later(_text("optimizer", "what changed the weights", "adam", "sgd"), "adam", 3),
    *(_later(_float(name, f"{what}; empty: not recorded", empty=True), _NAN, 5) for name, what in (
        ("lr", "learning rate"), ("momentum", "of sgd"), ("weight_decay", "of sgd"))),
    *(_later(_text(name, what), "not recorded", 5) for name, what in (
        ("data_root", "folder of images, or medmnist for its files"), ("torch_version", "version of torch"))),
    _later(_bool("random_crop", "switch"), False, 5))

CEILINGS = (
    _DEVICE, _DTYPE,
    *_each(_float, {"peak_gflops": "best rate of a matrix product (a multiply-add counts 2); empty on bandwidth rows",
        "peak_gbps": "triad bandwidth (24 bytes per fp64 element); empty on compute rows"}, empty=True),
    _text("level", "memory level that holds the working set", "compute", "L1", "L2", "L3", "RAM", "device"),
    _text("source", "measured here or stated by the vendor", "measured", "vendor"), _text("method", "how"),
    _float("working_set_mb", "bytes touched by one call, in 10^6; empty for a vendor's", empty=True),
    _int("threads", "torch CPU threads; 0 for a vendor's"),
    *_each(_float, {"median_ms": "median time of one call; empty for a vendor's",
        "iqr_ms": "its interquartile range"}, empty=True),
    _int("n", "samples; 0 for a vendor's"), _VERDICT, *_IDS)

OVERHEADS = (
    _DEVICE, _text("what", "timer_step, timer_call, timer_jitter, launch, first_touch"),
    *_each(_float, {"median_us": "median", "p99_us": "99th percentile"}),
    _int("n", "samples", 1), _text("method", "how"), *_IDS)

# every parameter of every operator family; a row fills those of its own family
PARAMETERS = (
    _text("kind", "function within the family, such as relu", empty=True),
    *_each(_count, {"batch": "samples, or matrices of a batched GEMM", "in_channels": "input channels",
        "out_channels": "output channels", "depth": "input depth", "height": "input height", "width": "input width"}),
    *(_count(f"{what}_{axis}", f"{what} along {name}", 0 if what == "padding" else 1)
      for what in ("kernel", "stride", "padding", "dilation")
      for axis, name in (("d", "depth"), ("h", "height"), ("w", "width"))),
    *(_count(f"out_{name}", f"output {name} of adaptive pooling") for name in ("depth", "height", "width")),
    _count("groups", "groups of a convolution; in_channels: depthwise"),
    *_each(_count, {"bias": "1: with a bias", "input_grad": "1: the backward also gives the input's gradient"}, 0),
    *_each(_count, {"gemm_m": "rows of the left matrix", "gemm_k": "columns of the left matrix, which are summed over",
        "gemm_n": "columns of the right matrix", "heads": "attention heads", "q_len": "queries", "kv_len": "keys and values",
        "head_dim": "width of a head", "rows": "rows that are normalised one by one",
        "columns": "elements that are normalised or reduced together", "elements": "elements of the output",
        "pieces": "tensors that are joined", "outer": "slow index of the flattened tensor",
        "inner": "fast index of the flattened tensor; pixels of a channel in batch norm"}),
    _text("broadcast", "how a smaller second input is repeated", empty=True),
    *_each(_count, {"inplace": "1: writes over its input", "training": "1: with the batch's own statistics"}, 0),
    _text("layout", "memory order: contiguous, channels_last, transposed; of a GEMM's matrices: n by rows, t by columns",
          empty=True))

_TIMED = (_DTYPE, _text("pass", "forward or backward pass", "forward", "backward"))
_HOW = (_text("latency_type", "kernel: calls back to back; end_to_end: each call on its own, synchronised",
              "kernel", "end_to_end"),
        _text("cache", "warm: buffers that were just used; cold: buffers that no cache holds", "warm", "cold"))
_STATUS = (_text("status", "ok, or the reason why there is no time", "ok", "skipped", "failed"),
           _text("reason", "error message; empty when the status is ok", empty=True))

ENERGIES = tuple(replace(column, since=1, default=None) for column in (  # a table of its own has no older version
    _CONFIG,
    _float("energy_j", "energy of one call, idle power included", empty=True),
    _int("calls", "calls in the loop"), _float("loop_s", "length of the loop, all of its set-up included"), *ENERGY))

CONFIGS = (
    _CONFIG, _OP,
    _text("parameters", "its parameters, as JSON"), *_TIMED, *_HOW,
    *_WORK,
    _float("footprint_mb", "memory needed to time it, at most, in 10^6 bytes", empty=True), *_STATUS)

REPEATS = (
    _CONFIG, _int("round", "round of the sweep"), _float("latency_ms", "median of this visit's samples", empty=True),
    *_each(_int, {"n": "samples of this visit", "calls": "calls in a row in one sample"}),
    _float("spread_ms", "interquartile range of the samples", empty=True),
    *_each(_float, {"at_s": "seconds since the worker began", "visit_s": "length of the visit, set-up included",
        "other_cores": "CPU cores used by other processes during the measurement",
        "stolen_cores": "CPU cores taken by the host (steal time) during the measurement"}),
    _float("yardstick_ms", "time of the reference kernel before or after the visit, the slower of the two; empty on GPUs",
           empty=True),
    *_STATUS,
    _later(_float("gpu_others", "share of the GPU's time that other processes used; empty: no GPU, or not known", empty=True),
           _NAN, 3),
    _later(_float("gpu_mhz", "clock of the GPU's multiprocessors after the visit; empty: no GPU, or not readable", empty=True),
           _NAN, 3),
    _later(_text("gpu_throttled", "what throttled the GPU; empty: nothing", empty=True), "", 3),
    _later(_text("gpu_unknown", "why use by other processes is unknown; empty: it is known, or no GPU", empty=True), "", 3))

SWEEP = (
    _OP, *PARAMETERS, *_TIMED, _DEVICE,
    *_each(_float, {"latency_ms": "median over the rounds' medians",
        "latency_iqr_ms": "interquartile range over the rounds"}, empty=True),
    _int("n", "rounds"), *_HOW, *_WORK,
    *_each(_float, {"gflops": "flops / latency", "gbps": "bytes / latency",
        "energy_j": "energy of one call, idle power included; empty: not measured"}, empty=True),
    *_STATUS, _VERDICT, *_IDS, _CONFIG, _THREADS,
    *_each(_float, {"low_ms": "smallest round", "high_ms": "largest round",
        "other_cores": "CPU cores used by other processes during the measurement, median"}, empty=True),
    *ENERGY, _TF32)

_POWERED = (
    _float("latency_ms", "one call, back to back", empty=True), _float("flops", "FLOPs from the shapes"),
    *_each(_float, {"power_w": "mean of the sensor while the calls repeat; empty: not measured",
        "limit_w": "the card's power limit"}, empty=True),
    _text("window", "long: the calls ran long enough for the sensor's mean to be their power", "long", "short"), *_STATUS,
    *_IDS)

POWER = (
    _OP,
    *_each(_int, {"gemm_m": "rows of the left matrix", "gemm_k": "columns of the left matrix, which are summed over",
        "gemm_n": "columns of the right matrix"}, 1),
    _text("dtype", "element type; other types keep their published name"), *_POWERED)

ATTENTION_POWER = (
    _OP,
    _text("phase", "prefill: causal attention among all tokens; decode: one new token attends to the cache", "prefill",
          "decode"),
    *_each(_int, {"batch": "sequences", "heads": "attention heads of the queries",
        "kv_heads": "heads of keys and values, each shared by heads / kv_heads of the queries", "head_dim": "size of a head",
        "q_len": "queries", "kv_len": "keys and values"}, 1),
    _int("sliding_window", "tokens that a query sees at most; 0: all before it"),
    *_each(_text, {"dtype": "element type of the queries; other types keep their published name",
        "kv_dtype": "element type of the cache of keys and values, likewise", "kernel": "name of the kernel"}),
    _float("bytes", "compulsory bytes: queries, output, and the keys and values that any query sees"), *_POWERED)

_LEVELS = ("L1", "L2", "L3", "RAM", "device")

POINTS = (
    *_each(_text, {"label": "the point's name for people",
        "env": "where it ran: a label of the environment, or the hardware id", "arch": "the model, or the operator family"}),
    _BACKEND, _int("batch_size", "samples; 0 where there is no batch"),
    _text("precision", "element type, or the autocast type", "fp64", "fp32", "tf32", "bf16", "fp16"),
    _float("elapsed_sec", "one step, pass, call, or all counted kernels"),
    _float("images_per_sec", "batch_size / elapsed_sec; empty where there is no batch", empty=True),
    *_each(_float, {"ai": "arithmetic intensity: flops / bytes", "attained_gflops": "flops / elapsed_sec",
        "peak_gflops": "the compute roof", "peak_gbps": "the memory roof of `level`"}),
    _text("bytes_source", "compulsory: least traffic of each operator; "
          "estimated: the same with assumed types; counted: hardware counters",
          "compulsory", "estimated", "counted"),
    _text("bound", "what bounds the time: compute, a memory level, or launch overhead", "compute", *_LEVELS, "launch"),
    _text("kind", "what the point is", "step", "network", "operator", "counted"),
    _text("family", "workload, model or operator family: the colour of the point"),
    *_each(_int, {"calls": "operators (or kernels) in elapsed_sec",
        "occurrences": "how often the network holds this work"}, 1),
    *_each(_float, {"flops": "FLOPs in elapsed_sec", "bytes": "bytes in elapsed_sec"}),
    _text("level", "the memory level whose roof the point is compared with", *_LEVELS),
    *_each(_float, {"attainable_gflops": "the roof at this intensity",
        "below_roof": "attainable / attained performance; below 1: the point lies above the roof"}),
    _text("roof_dtype", "element type of the compute roof", "fp64", "fp32", "tf32", "bf16", "fp16"),
    _text("roof_source", "measured here or stated by the vendor", "measured", "vendor"), _VERDICT, *_IDS)

CELLS = (
    _text("label", "environment/model/batch/precision"), _MODEL, _BACKEND, _BATCH, _PRECISION,
    _int("repeat", "which of the cell's repeats", 1), _text("status", "outcome of the run", "ok", "failed"),
    *_each(_text, {"reason": "why it failed or is not counted; empty otherwise",
        "run_id": "the run; empty when it failed"}, empty=True),
    _float("images_per_sec", "throughput; empty when it failed", empty=True),
    *_each(_text, {"hardware_id": "which machine", "at_utc": "when it ended, ISO 8601"}))

MATRIX = (
    *_each(_text, {"env": "where it ran: the environment of the matrix", "workload_id": "what was trained on what"}),
    _MODEL, _BACKEND, _BATCH, _PRECISION,
    _text("settings", "source of the images, and switches that differ from their defaults"), _int("n", "usable runs", 1),
    _float("images_per_sec", "throughput, mean of the runs"),
    _float("std", "its standard deviation; empty for one run", empty=True),
    *_each(_float, {"median": "median throughput", "low": "the slowest run's", "high": "the fastest run's",
        "cpu_percent": "CPU time of the process and its workers, % of one core, median"}),
    *_IDS)

COMPLEXITY = (
    _text("network", "workload id, model name, or module:Class"), _int("batch_size", "samples of the captured step", 1),
    _text("layer", "the module's name in the network; loss; empty: the network's own forward", empty=True),
    _text("op", "ATen operator; unused: parameters that no operator reads"),
    *_each(_int, {"calls": "how often a step runs it", "params": "parameters that this row is the first to use",
        "activation_bytes": "activations of the forward pass that the backward pass reads"}),
    *_each(_float, {"flops_forward": "all FLOPs of the forward pass; empty: not known",
        "flops_backward": "all FLOPs of the backward pass; empty: not known"}, empty=True),
    *_each(_int, {"bytes_forward": "compulsory bytes, read and written, of the forward pass",
        "bytes_backward": "compulsory bytes, read and written, of the backward pass"}))

NETWORKS = (
    _text("network", "workload id, model name, or module:Class"),
    _text("mode", "one forward pass without gradients, or forward, loss and backward", "infer", "train"),
    _int("batch_size", "samples", 1), _text("input_shape", "one sample; empty: the network's usual one", empty=True),
    _text("dtype", "element type, or the autocast type", "fp32", "bf16", "fp16"),
    _bool("channels_last", "whether 4-D tensors have channels innermost"), _DEVICE,
    _text("memory", "default allocator, or retained heap: freed memory stays in the process", "default", "kept"), _THREADS,
    *_each(_float, {"latency_ms": "median of the passes", "latency_iqr_ms": "interquartile range of the passes"}, empty=True),
    _int("n", "number of measured passes"),
    _float("usual_share", "share of passes during which the processor ran at its usual speed", empty=True),
    _float("rss_mb", "growth of the process's resident memory, network included, at its peak; 10^6 bytes", None, empty=True),
    _float("tensors_mb", "peak of tensors beyond weights and inputs in one pass, 10^6 bytes", empty=True), *_STATUS,
    _VERDICT, *_IDS,
    _later(_float("energy_j", "energy of one pass, idle power included; empty: not measured", empty=True), _NAN),
    *ENERGY, _TF32, _later(_bool("compiled", "whether torch.compile compiled the network"), False, 4))

SCORES = (
    _text("kind", "what was predicted", "operator", "network", "step", "memory", "power"),
    _text("family", "family and pass, or mode and batch size"), _LEARNER,
    *_each(_float, {"mape": "mean absolute error, %", "mape_low": "its 95 % bootstrap interval, low end",
        "mape_high": "high end", "median": "median absolute error, %", "p90": "90th percentile, %",
        "within_10": "share within 10 %, %"}),
    _int("n", "predictions", 1), _float("cover", "share inside the 90 % interval, %; empty: no intervals", empty=True))

STEPS = (
    _IDS[0],
    *_each(_text, {"run_id": "the profiled run", "workload": "its workload", "arch": "its model"}),
    _BATCH, _text("split", "what was left out of training: the run's workload or its architecture", "workload", "arch"),
    _LEARNER,
    *_each(_float, {"measured_ms": "median profiled training step", "predicted_ms": "predicted step"}),
    *_INTERVAL,
    *(_float(f"{name}_ms", f"{what}; empty: not predicted separately", empty=True) for name, what in (
        ("loader_wait", "wait for the loader"), ("h2d", "copy to the device"), ("forward", "forward pass"),
        ("backward", "backward pass"), ("optimizer", "optimizer's step"))))

SCHEDULE = (
    *_each(_text, {"job_id": "the job", "device": "where it ran"}),
    *_each(_float, {"start_s": "seconds since the schedule's start", "end_s": "when it ended there"}),
    _int("attempt", "from 1", 1),
    _text("status", "how the attempt ended; moved: restarted on another device; lost: not counted, because the run was "
          "killed or the disk was full", "done", "failed", "retried", "moved", "lost"))

CONTENTION = (
    *_each(_text, {"workload_id": "what is trained", "device_type": "device type of the slot",
        "beside": "workload that ran at the same time, or nothing", "beside_type": "device type of that workload, or none"}),
    *_each(_float, {"step_ms": "time per step: median over rounds of each round's median",
        "slowdown": "median over rounds of time per step / time per step alone, in the same round",
        "slowdown_low": "lowest of the rounds", "slowdown_high": "highest of the rounds"}),
    _int("n", "rounds", 1),
    *_each(_text, {"hardware_id": "the machine", "software_id": "library versions and settings"}))

JOBS = (
    _text("job_id", "the job"),
    *_each(_text, {"workload_id": "what is trained: id in params/workloads.yaml",
        "notebook": "path of a notebook to execute instead",
        "parameters": "parameters of the notebook, as a JSON object"}, default=""),
    _count("steps", "training steps of the workload", default=_NAN),
    _float("arrival_s", "when it arrives", default=0.0),
    _float("deadline_s", "when it should have ended; empty: no deadline", default=float("inf")),
    *_each(_float, {"memory_mb": "memory that it needs on its device",
        "cpu_cores": "host cores needed beside a GPU, or cores of the CPU slot"}, default=0.0))

# what others published, and what was predicted of held-out measurements
THROUGHPUTS = (
    _text("job_type", "model and batch size, as published"),
    _int("devices", "devices that the job uses at once", 1),
    _text("device", "device type"),
    _float("steps_per_s", "measured training steps a second, without others; 0: does not fit"))

WHOLE_NETWORKS = (
    *_each(_text, {"device": "the card, as in params/devices.yaml, or the CPU", "network": "its name in timm",
        "module": "the file of timm that defines it: its family"}),
    *_each(_int, {"image_size": "height and width of an image", "batch_size": "images a step"}, 1),
    _text("mode", "a forward pass, or a step of training", "infer", "train"),
    _text("precision", "element type, or that of automatic mixed precision (amp)", "fp32", "bf16", "amp_fp16", "amp_bf16"),
    _text("layout", "order of an image's axes in memory", "nchw", "nhwc"),
    _bool("compiled", "whether torch.compile compiled it"),
    _text("torch", "version of torch, such as 2.4.0"),
    *_each(_float, {"images_per_sec": "measured", "latency_ms": "a step's time: batch size over images/s"}),
    *_each(_float, {"parameters_m": "millions of parameters; empty: not stated",
        "gmacs": "10^9 multiply-adds an image; empty: not stated",
        "mactivations": "millions of activations an image; empty: not stated"}, empty=True))

HELD_OUT = (
    *_each(_text, {"device": "what it was measured on", "what": "what was predicted, and what was held out for it",
        "kind": "kind of network, or family of operators; empty: not told apart"}),
    _text("mode", "a forward pass, or a step of training; of operators which pass", "infer", "train", "forward", "backward"),
    *_each(_text, {"condition": "how it ran: a condition of a card, the allocator of a CPU, an element type",
        "group": "what no fold splits, such as the family of the network; empty: not recorded",
        "case": "the network (and its image size), the run, or the configuration"}),
    _count("batch_size", "samples a batch; empty: no batch"),
    _count("fold", "the fold in which it was held out; empty: each group was held out by itself", 0),
    _text("left_out", "what the model that predicted it had not seen"),
    *_each(_single, {"measured": "ms of a network, a step or an operator; MB of memory; a factor of gains",
        "predicted": "in the same unit"}),
    *_each(_single, {"low": "90 % interval, low end; empty: none",
        "high": "90 % interval, high end; empty: none"}, empty=True),
    *_each(_bool, {"out_of_range": "whether the answer was flagged as outside of the training ranges",
        "usable": "whether repeats of the measurement agree; scores without and with the others are both given"}),
    _count("networks", "networks of the device that corrected the model; empty: none was to", 0),
    _int("draw", "which of several random choices of these networks"),
    *_each(_text, {"source": "who measured it", "licence": "under which licence it was published"}))

DURATIONS = (
    *_each(_text, {"run": "the folder of the run's journal", "job_id": "the job", "notebook": "what was executed",
        "device_type": "device type of the slot"}),
    _float("seconds", "how long it took"))

HISTORY = (
    *_each(_int, {"step": "training batch since the run began, from 0; of an epoch's values: its last", "epoch": "from 0"}),
    _text("name", "what is reported, as in TensorBoard: train/step_loss, val/acc@1, ..."),
    _float("value", "its value; empty: undefined", None, empty=True), _float("wall_time_s", "when, in seconds since 1970"))

DEVICES = (
    *_each(_text, {"device": "a device, or a group of equal ones", "type": "device type; devices of one type are alike"}),
    _int("count", "devices in the group", default=1),
    *_each(_float, {"memory_mb": "memory of each; empty: not known", "cpu_cores": "cores of each CPU slot",
        "idle_w": "power when idle", "busy_w": "power at work"}, empty=True, default=_NAN),
    _float("setup_s", "before each job", default=0.0),
    _float("price_per_hour", "price of an hour of use", empty=True, default=_NAN))

TABLES: dict[str, Columns] = {"profile": PROFILE, "runs": RUNS, "ceilings": CEILINGS, "overheads": OVERHEADS,
                              "configs": CONFIGS, "repeats": REPEATS, "energies": ENERGIES, "sweep": SWEEP, "power": POWER,
                              "attention_power": ATTENTION_POWER,
                              "points": POINTS, "cells": CELLS, "matrix": MATRIX, "complexity": COMPLEXITY,
                              "networks": NETWORKS, "scores": SCORES, "steps": STEPS,
                              "held_out": HELD_OUT,
                              "schedule": SCHEDULE, "throughputs": THROUGHPUTS, "whole_networks": WHOLE_NETWORKS,
                              "contention": CONTENTION,
                              "jobs": JOBS, "devices": DEVICES, "durations": DURATIONS, "history": HISTORY}


def columns(table: str) -> list[str]:
    """Return the column names of ``table`` in order; InputError lists the tables."""
    return [column.name for column in entry(TABLES, table, "table")]


def validate(frame, table: str, where: str):
    """Return ``frame`` with the types of ``table``.

    Raises InputError naming ``where``, the column and the first wrong values.
    """
    return validated(frame, TABLES[table], table, where)


def dictionary() -> str:
    """Return the data dictionary of every table as Markdown: what stands below the heading *Dictionary* of data/README.md."""
    parts = []
    for table, content in TABLES.items():
        rows = [f"| `{c.name}` | {c.kind} | {c.meaning}{' (' + choices(c.of) + ')' if c.of else ''} |" for c in content]
        parts.append(f"### `{table}`\n\n| column | type | meaning |\n|---|---|---|\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def with_dictionary(page: str) -> str:
    """Return a page (data/README.md) with the part from its first table on replaced by the dictionary."""
    return page.partition("### `")[0] + dictionary()
