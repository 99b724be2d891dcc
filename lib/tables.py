"""The tables: every column with its type, meaning and allowed values, checked strictly on write and on read."""

from dataclasses import replace

from lib.columns import HELD_OUT, THROUGHPUTS, WHOLE_NETWORKS, Column, Columns, validated
from lib.errors import InputError, choices

SCHEMA_VERSION = "5"
NO_ENERGY = "measured before power was recorded"


def _text(name: str, meaning: str, *of: str, empty: bool = False) -> Column:
    return Column(name, "text", meaning, of=of, empty=empty)


def _int(name: str, meaning: str, least: float | None = 0) -> Column:
    return Column(name, "int", meaning, least)


def _float(name: str, meaning: str, least: float | None = 0, empty: bool = False) -> Column:
    return Column(name, "float", meaning, least, empty=empty)


def _count(name: str, meaning: str, least: float | None = 1) -> Column:
    return Column(name, "count", meaning, least, empty=True)


def _bool(name: str, meaning: str) -> Column:
    return Column(name, "bool", meaning)


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
                  empty=True), float("nan")),
    _later(_float("idle_w", "idle power, logged in the same session; empty: not measured", empty=True), float("nan")),
    _later(_text("energy_method", "the meter and its reading (energy counter, or integrated power), or not measured",
                 empty=True), "not measured"),
    _later(_count("energy_n", "samples of the meter during the measurement", 0), 0),
    _later(_float("energy_disagreement", "integrated power / energy counter - 1; empty unless both were read", None,
                  empty=True), float("nan")),
    _later(_text("energy_reason", "why there is no energy; empty where there is", empty=True), NO_ENERGY))

_DATA_SOURCE = _text("data_source", "source of the images; unofficial: a file with the name of a MedMNIST file and other "
                     "content", "medmnist", "synthetic", "imagefolder", "unofficial")

PROFILE = (
    _text("run_id", "the run, also the start of the file's name"), _text("workload_id", "id in params/workloads.yaml"),
    _text("dataset", "MedMNIST flag or imagefolder"), _text("model", "model name"),
    _text("task_type", "what the pass does", "train", "eval", "test"),
    _text("split", "which part of the dataset", "train", "val", "test"),
    _int("epoch", "epoch from 0; -1 in evaluation", -1), _int("batch_idx", "batch within the pass"),
    _int("global_step", "batches of this pass type so far"), _int("batch_size", "samples in this batch", 1),
    _int("channels", "input channels", 1), _int("dim1", "H (2D) or D (3D)", 1), _int("dim2", "W (2D) or H (3D)", 1),
    _int("dim3", "0 (2D) or W (3D)"), replace(_BACKEND, name="device_type"),
    _int("device_index", "-1 on the CPU", -1), _int("num_workers", "loader worker processes"),
    _PRECISION,
    _float("data_time_ms", "loader wait + host-to-device copy"),
    _float("forward_time_ms", "forward pass and loss"), _float("backward_time_ms", "backward pass; 0 in evaluation"),
    _float("step_time_ms", "the whole step, timed independently; its phases sum to it"),
    _float("data_time_pct", "data_time_ms / step_time_ms * 100"),
    _float("forward_time_pct", "forward_time_ms / step_time_ms * 100"),
    _float("backward_time_pct", "backward_time_ms / step_time_ms * 100"),
    _float("images_per_sec", "batch_size / step time"), _float("loss", "loss of this batch", None, empty=True),
    _float("lr", "learning rate; empty in evaluation", empty=True),
    _float("cuda_mem_alloc_mb", "allocated by torch on the GPU; 0 elsewhere"),
    _float("cuda_mem_reserved_mb", "reserved by torch on the GPU; 0 elsewhere"),
    _float("wall_time_s", "seconds since the pass began"),
    _float("loader_wait_ms", "waiting for the data loader"), _float("h2d_ms", "host-to-device copy and conversion"),
    _float("optimizer_ms", "optimizer step and zeroing of gradients; 0 in evaluation"),
    _float("pipelined_ms", "mean step of an unsynchronised, unprofiled pass of the same run; empty where not run", empty=True),
    _float("energy_j", "energy of the step, idle power included; empty: not measured", empty=True),
    _float("peak_rss_mb", "peak resident memory of the process so far"), _THREADS,
    _bool("warmup", "a warm-up row: stays in the file, but enters no statistic"),
    _text("sync", "how phases were clocked", "none", "event", "synchronize"),
    _DATA_SOURCE, *_IDS, _TF32)

RUNS = (
    _text("run_id", "the run"), _text("label", "the run's name for people"), _text("timestamp", "UTC start, ISO 8601"),
    _text("hostname", "machine name"), _MODEL, _BACKEND, _text("device_name", "processor or GPU name"), _BATCH,
    _int("warmup_iters", "warm-up batches, not counted"), _int("measured_iters", "batches of the unsynchronised pass", 1),
    _PRECISION,
    _float("elapsed_sec", "the unsynchronised pass, synchronised before and after"),
    _float("images_per_sec", "images_processed / elapsed_sec"), _int("images_processed", "images in elapsed_sec", 1),
    _text("workload_id", "id in params/workloads.yaml"), _text("dataset", "MedMNIST flag or imagefolder"),
    _DATA_SOURCE,
    _text("resolution", "native or resized", "native", "resized"),
    _bool("channels_last", "switch"), _int("grad_accum_steps", "switch", 1), _int("num_workers", "switch"),
    _bool("pin_memory", "switch"), _int("prefetch_factor", "switch; 0 without workers"), _bool("augment", "switch"),
    _bool("deterministic", "switch"), _bool("cudnn_benchmark", "switch"), _bool("tf32", "TF32 allowed on the device"),
    _THREADS, _int("seed", "random seed"),
    _float("cpu_percent", "CPU time of this process and its workers, % of one core"),
    _float("peak_rss_mb", "peak resident memory of the process"),
    _float("other_cpu_cores", "CPU cores used by other processes during the measurement"),
    _float("involuntary_switches_per_s", "involuntary context switches per second"),
    _float("step_median_ms", "median profiled training step, full batches, warm-up left out", empty=True),
    _float("step_iqr_ms", "its interquartile range", empty=True),
    _float("step_low_ms", "95 % bootstrap interval of the median, low end", empty=True),
    _float("step_high_ms", "95 % bootstrap interval of the median, high end", empty=True),
    _int("step_n", "steps in that median"), _VERDICT,
    _text("reason", "why it is not stable; empty when it is", empty=True), *_IDS,
    _later(_float("image_j", "energy of training on one image, in the unsynchronised pass, idle power included; empty: not "
                  "measured", empty=True), float("nan")), *ENERGY,
    _later(_text("optimizer", "what changed the weights", "adam", "sgd"), "adam", 3),
    *(_later(_float(name, f"{what}; empty: not recorded", empty=True), float("nan"), 5) for name, what in (
        ("lr", "learning rate"), ("momentum", "of sgd"), ("weight_decay", "of sgd"))),
    *(_later(_text(name, what), "not recorded", 5) for name, what in (
        ("data_root", "folder of images, or medmnist for its files"), ("torch_version", "version of torch"))),
    _later(_bool("random_crop", "switch"), False, 5))

CEILINGS = (
    _DEVICE, _DTYPE,
    _float("peak_gflops", "best rate of a matrix product (a multiply-add counts 2); empty on bandwidth rows", empty=True),
    _float("peak_gbps", "triad bandwidth (24 bytes per fp64 element); empty on compute rows", empty=True),
    _text("level", "memory level that holds the working set", "compute", "L1", "L2", "L3", "RAM", "device"),
    _text("source", "measured here or stated by the vendor", "measured", "vendor"), _text("method", "how"),
    _float("working_set_mb", "bytes touched by one call, in 10^6; empty for a vendor's", empty=True),
    _int("threads", "torch CPU threads; 0 for a vendor's"),
    _float("median_ms", "median time of one call; empty for a vendor's", empty=True),
    _float("iqr_ms", "its interquartile range", empty=True), _int("n", "samples; 0 for a vendor's"),
    _VERDICT, *_IDS)

OVERHEADS = (
    _DEVICE, _text("what", "timer_step, timer_call, timer_jitter, launch, first_touch"),
    _float("median_us", "median"), _float("p99_us", "99th percentile"), _int("n", "samples", 1),
    _text("method", "how"), *_IDS)

# every parameter of every operator family; a row fills those of its own family
PARAMETERS = (
    _text("kind", "function within the family, such as relu", empty=True),
    _count("batch", "samples, or matrices of a batched GEMM"),
    _count("in_channels", "input channels"), _count("out_channels", "output channels"), _count("depth", "input depth"),
    _count("height", "input height"), _count("width", "input width"),
    *(_count(f"{what}_{axis}", f"{what} along {name}", 0 if what == "padding" else 1)
      for what in ("kernel", "stride", "padding", "dilation")
      for axis, name in (("d", "depth"), ("h", "height"), ("w", "width"))),
    *(_count(f"out_{name}", f"output {name} of adaptive pooling") for name in ("depth", "height", "width")),
    _count("groups", "groups of a convolution; in_channels: depthwise"), _count("bias", "1: with a bias", 0),
    _count("input_grad", "1: the backward also gives the input's gradient", 0), _count("gemm_m", "rows of the left matrix"),
    _count("gemm_k", "columns of the left matrix, which are summed over"), _count("gemm_n", "columns of the right matrix"),
    _count("heads", "attention heads"), _count("q_len", "queries"), _count("kv_len", "keys and values"),
    _count("head_dim", "width of a head"), _count("rows", "rows that are normalised one by one"),
    _count("columns", "elements that are normalised or reduced together"), _count("elements", "elements of the output"),
    _count("pieces", "tensors that are joined"), _count("outer", "slow index of the flattened tensor"),
    _count("inner", "fast index of the flattened tensor; pixels of a channel in batch norm"),
    _text("broadcast", "how a smaller second input is repeated", empty=True), _count("inplace", "1: writes over its input", 0),
    _count("training", "1: with the batch's own statistics", 0),
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
    _CONFIG, _int("round", "round of the sweep"),
    _float("latency_ms", "median of this visit's samples", empty=True), _int("n", "samples of this visit"),
    _int("calls", "calls in a row in one sample"), _float("spread_ms", "interquartile range of the samples", empty=True),
    _float("at_s", "seconds since the worker began"), _float("visit_s", "length of the visit, set-up included"),
    _float("other_cores", "CPU cores used by other processes during the measurement"),
    _float("stolen_cores", "CPU cores taken by the host (steal time) during the measurement"),
    _float("yardstick_ms", "time of the reference kernel before or after the visit, the slower of the two; empty on GPUs",
           empty=True),
    *_STATUS,
    _later(_float("gpu_others", "share of the GPU's time that other processes used; empty: no GPU, or not known", empty=True),
           float("nan"), 3),
    _later(_float("gpu_mhz", "clock of the GPU's multiprocessors after the visit; empty: no GPU, or not readable", empty=True),
           float("nan"), 3),
    _later(_text("gpu_throttled", "what throttled the GPU; empty: nothing", empty=True), "", 3),
    _later(_text("gpu_unknown", "why use by other processes is unknown; empty: it is known, or no GPU", empty=True), "", 3))

SWEEP = (
    _OP, *PARAMETERS, *_TIMED, _DEVICE,
    _float("latency_ms", "median over the rounds' medians", empty=True),
    _float("latency_iqr_ms", "interquartile range over the rounds", empty=True), _int("n", "rounds"), *_HOW,
    *_WORK,
    _float("gflops", "flops / latency", empty=True), _float("gbps", "bytes / latency", empty=True),
    _float("energy_j", "energy of one call, idle power included; empty: not measured", empty=True), *_STATUS, _VERDICT, *_IDS,
    _CONFIG, _THREADS,
    _float("low_ms", "smallest round", empty=True), _float("high_ms", "largest round", empty=True),
    _float("other_cores", "CPU cores used by other processes during the measurement, median", empty=True), *ENERGY, _TF32)

_POWERED = (
    _float("latency_ms", "one call, back to back", empty=True), _float("flops", "FLOPs from the shapes"),
    _float("power_w", "mean of the sensor while the calls repeat; empty: not measured", empty=True),
    _float("limit_w", "the card's power limit", empty=True),
    _text("window", "long: the calls ran long enough for the sensor's mean to be their power", "long", "short"),
    *_STATUS, *_IDS)

POWER = (
    _OP, _int("gemm_m", "rows of the left matrix", 1),
    _int("gemm_k", "columns of the left matrix, which are summed over", 1), _int("gemm_n", "columns of the right matrix", 1),
    _text("dtype", "element type; other types keep their published name"), *_POWERED)

ATTENTION_POWER = (
    _OP,
    _text("phase", "prefill: causal attention among all tokens; decode: one new token attends to the cache", "prefill",
          "decode"),
    _int("batch", "sequences", 1), _int("heads", "attention heads of the queries", 1),
    _int("kv_heads", "heads of keys and values, each shared by heads / kv_heads of the queries", 1),
    _int("head_dim", "size of a head", 1), _int("q_len", "queries", 1), _int("kv_len", "keys and values", 1),
    _int("sliding_window", "tokens that a query sees at most; 0: all before it"),
    _text("dtype", "element type of the queries; other types keep their published name"),
    _text("kv_dtype", "element type of the cache of keys and values, likewise"), _text("kernel", "name of the kernel"),
    _float("bytes", "compulsory bytes: queries, output, and the keys and values that any query sees"), *_POWERED)

_LEVELS = ("L1", "L2", "L3", "RAM", "device")

POINTS = (
    _text("label", "the point's name for people"), _text("env", "where it ran: a label of the environment, or the hardware id"),
    _text("arch", "the model, or the operator family"), _BACKEND, _int("batch_size", "samples; 0 where there is no batch"),
    _text("precision", "element type, or the autocast type", "fp64", "fp32", "tf32", "bf16", "fp16"),
    _float("elapsed_sec", "one step, pass, call, or all counted kernels"),
    _float("images_per_sec", "batch_size / elapsed_sec; empty where there is no batch", empty=True),
    _float("ai", "arithmetic intensity: flops / bytes"), _float("attained_gflops", "flops / elapsed_sec"),
    _float("peak_gflops", "the compute roof"), _float("peak_gbps", "the memory roof of `level`"),
    _text("bytes_source", "compulsory: least traffic of each operator; "
          "estimated: the same with assumed types; counted: hardware counters",
          "compulsory", "estimated", "counted"),
    _text("bound", "what bounds the time: compute, a memory level, or launch overhead", "compute", *_LEVELS, "launch"),
    _text("kind", "what the point is", "step", "network", "operator", "counted"),
    _text("family", "workload, model or operator family: the colour of the point"),
    _int("calls", "operators (or kernels) in elapsed_sec", 1), _int("occurrences", "how often the network holds this work", 1),
    _float("flops", "FLOPs in elapsed_sec"), _float("bytes", "bytes in elapsed_sec"),
    _text("level", "the memory level whose roof the point is compared with", *_LEVELS),
    _float("attainable_gflops", "the roof at this intensity"),
    _float("below_roof", "attainable / attained performance; below 1: the point lies above the roof"),
    _text("roof_dtype", "element type of the compute roof", "fp64", "fp32", "tf32", "bf16", "fp16"),
    _text("roof_source", "measured here or stated by the vendor", "measured", "vendor"), _VERDICT, *_IDS)

CELLS = (
    _text("label", "environment/model/batch/precision"), _MODEL, _BACKEND, _BATCH, _PRECISION,
    _int("repeat", "which of the cell's repeats", 1), _text("status", "outcome of the run", "ok", "failed"),
    _text("reason", "why it failed or is not counted; empty otherwise", empty=True),
    _text("run_id", "the run; empty when it failed", empty=True),
    _float("images_per_sec", "throughput; empty when it failed", empty=True), _text("hardware_id", "which machine"),
    _text("at_utc", "when it ended, ISO 8601"))

MATRIX = (
    _text("env", "where it ran: the environment of the matrix"), _text("workload_id", "what was trained on what"),
    _MODEL, _BACKEND, _BATCH,
    _PRECISION,
    _text("settings", "source of the images, and switches that differ from their defaults"), _int("n", "usable runs", 1),
    _float("images_per_sec", "throughput, mean of the runs"),
    _float("std", "its standard deviation; empty for one run", empty=True), _float("median", "median throughput"),
    _float("low", "the slowest run's"), _float("high", "the fastest run's"),
    _float("cpu_percent", "CPU time of the process and its workers, % of one core, median"), *_IDS)

COMPLEXITY = (
    _text("network", "workload id, model name, or module:Class"), _int("batch_size", "samples of the captured step", 1),
    _text("layer", "the module's name in the network; loss; empty: the network's own forward", empty=True),
    _text("op", "ATen operator; unused: parameters that no operator reads"), _int("calls", "how often a step runs it"),
    _int("params", "parameters that this row is the first to use"),
    _int("activation_bytes", "activations of the forward pass that the backward pass reads"),
    _float("flops_forward", "all FLOPs of the forward pass; empty: not known", empty=True),
    _float("flops_backward", "all FLOPs of the backward pass; empty: not known", empty=True),
    _int("bytes_forward", "compulsory bytes, read and written, of the forward pass"),
    _int("bytes_backward", "compulsory bytes, read and written, of the backward pass"))

NETWORKS = (
    _text("network", "workload id, model name, or module:Class"),
    _text("mode", "one forward pass without gradients, or forward, loss and backward", "infer", "train"),
    _int("batch_size", "samples", 1), _text("input_shape", "one sample; empty: the network's usual one", empty=True),
    _text("dtype", "element type, or the autocast type", "fp32", "bf16", "fp16"),
    _bool("channels_last", "whether 4-D tensors have channels innermost"), _DEVICE,
    _text("memory", "default allocator, or retained heap: freed memory stays in the process", "default", "kept"),
    _THREADS, _float("latency_ms", "median of the passes", empty=True),
    _float("latency_iqr_ms", "interquartile range of the passes", empty=True), _int("n", "number of measured passes"),
    _float("usual_share", "share of passes during which the processor ran at its usual speed", empty=True),
    _float("rss_mb", "growth of the process's resident memory, network included, at its peak; 10^6 bytes", None, empty=True),
    _float("tensors_mb", "peak of tensors beyond weights and inputs in one pass, 10^6 bytes", empty=True),
    *_STATUS, _VERDICT, *_IDS,
    _later(_float("energy_j", "energy of one pass, idle power included; empty: not measured", empty=True), float("nan")),
    *ENERGY, _TF32, _later(_bool("compiled", "whether torch.compile compiled the network"), False, 4))

SCORES = (
    _text("kind", "what was predicted", "operator", "network", "step", "memory", "power"),
    _text("family", "family and pass, or mode and batch size"), _LEARNER,
    _float("mape", "mean absolute error, %"), _float("mape_low", "its 95 % bootstrap interval, low end"),
    _float("mape_high", "high end"), _float("median", "median absolute error, %"), _float("p90", "90th percentile, %"),
    _float("within_10", "share within 10 %, %"), _int("n", "predictions", 1),
    _float("cover", "share inside the 90 % interval, %; empty: no intervals", empty=True))

STEPS = (
    _IDS[0], _text("run_id", "the profiled run"), _text("workload", "its workload"), _text("arch", "its model"),
    _BATCH, _text("split", "what was left out of training: the run's workload or its architecture", "workload", "arch"),
    _LEARNER, _float("measured_ms", "median profiled training step"),
    _float("predicted_ms", "predicted step"), *_INTERVAL,
    *(_float(f"{name}_ms", f"{what}; empty: not predicted separately", empty=True) for name, what in (
        ("loader_wait", "wait for the loader"), ("h2d", "copy to the device"), ("forward", "forward pass"),
        ("backward", "backward pass"), ("optimizer", "optimizer's step"))))

SCHEDULE = (
    _text("job_id", "the job"), _text("device", "where it ran"), _float("start_s", "seconds since the schedule's start"),
    _float("end_s", "when it ended there"), _int("attempt", "from 1", 1),
    _text("status", "how the attempt ended; moved: restarted on another device; lost: not counted, because the run was "
          "killed or the disk was full", "done", "failed", "retried", "moved", "lost"))

CONTENTION = (
    _text("workload_id", "what is trained"), _text("device_type", "device type of the slot"),
    _text("beside", "workload that ran at the same time, or nothing"),
    _text("beside_type", "device type of that workload, or none"),
    _float("step_ms", "time per step: median over rounds of each round's median"),
    _float("slowdown", "median over rounds of time per step / time per step alone, in the same round"),
    _float("slowdown_low", "lowest of the rounds"), _float("slowdown_high", "highest of the rounds"), _int("n", "rounds", 1),
    _text("hardware_id", "the machine"), _text("software_id", "library versions and settings"))

JOBS = (
    _text("job_id", "the job"), Column("workload_id", "text", "what is trained: id in params/workloads.yaml", default=""),
    Column("notebook", "text", "path of a notebook to execute instead", default=""),
    Column("parameters", "text", "parameters of the notebook, as a JSON object", default=""),
    Column("steps", "count", "training steps of the workload", 1, empty=True, default=float("nan")),
    Column("arrival_s", "float", "when it arrives", 0, default=0.0),
    Column("deadline_s", "float", "when it should have ended; empty: no deadline", 0, default=float("inf")),
    Column("memory_mb", "float", "memory that it needs on its device", 0, default=0.0),
    Column("cpu_cores", "float", "host cores needed beside a GPU, or cores of the CPU slot", 0,
           default=0.0))

DURATIONS = (
    _text("run", "the folder of the run's journal"), _text("job_id", "the job"), _text("notebook", "what was executed"),
    _text("device_type", "device type of the slot"), _float("seconds", "how long it took"))

HISTORY = (
    _int("step", "training batch since the run began, from 0; of an epoch's values: its last"), _int("epoch", "from 0"),
    _text("name", "what is reported, as in TensorBoard: train/step_loss, val/acc@1, ..."),
    _float("value", "its value; empty: undefined", None, empty=True), _float("wall_time_s", "when, in seconds since 1970"))

_UNKNOWN = {"empty": True, "default": float("nan")}
DEVICES = (
    _text("device", "a device, or a group of equal ones"), _text("type", "device type; devices of one type are alike"),
    Column("count", "int", "devices in the group", 0, default=1),
    Column("memory_mb", "float", "memory of each; empty: not known", 0, **_UNKNOWN),
    Column("cpu_cores", "float", "cores of each CPU slot", 0, **_UNKNOWN),
    Column("idle_w", "float", "power when idle", 0, **_UNKNOWN), Column("busy_w", "float", "power at work", 0, **_UNKNOWN),
    Column("setup_s", "float", "before each job", 0, default=0.0),
    Column("price_per_hour", "float", "price of an hour of use", 0, **_UNKNOWN))

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
    if table not in TABLES:
        raise InputError(f"no table {table!r}; there are: {choices(TABLES)}")
    return [column.name for column in TABLES[table]]


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
