"""Tables of a device and of operators on it: ceilings, sweeps, power, roofline points."""

from math import nan

from lib.tables.column import choice, count, number, text, whole
from lib.tables.shared import (
    BACKEND, CONFIG, DEVICE, DTYPE, ENERGY, HOW, IDS, OP, STATUS, TF32, THREADS, TIMED, VERDICT,
    WORK,
)

PARAMETERS = {
    "kind": text("function within the family, such as relu", empty=True),
    "batch": count("samples, or matrices of a batched GEMM", empty=True),
    "in_channels": count("input channels", empty=True),
    "out_channels": count("output channels", empty=True),
    "depth": count("input depth", empty=True),
    "height": count("input height", empty=True),
    "width": count("input width", empty=True),
    "kernel_d": count("kernel along depth", empty=True),
    "kernel_h": count("kernel along height", empty=True),
    "kernel_w": count("kernel along width", empty=True),
    "stride_d": count("stride along depth", empty=True),
    "stride_h": count("stride along height", empty=True),
    "stride_w": count("stride along width", empty=True),
    "padding_d": whole("padding along depth", empty=True),
    "padding_h": whole("padding along height", empty=True),
    "padding_w": whole("padding along width", empty=True),
    "dilation_d": count("dilation along depth", empty=True),
    "dilation_h": count("dilation along height", empty=True),
    "dilation_w": count("dilation along width", empty=True),
    "out_depth": count("output depth of adaptive pooling", empty=True),
    "out_height": count("output height of adaptive pooling", empty=True),
    "out_width": count("output width of adaptive pooling", empty=True),
    "groups": count("groups of a convolution; in_channels: depthwise", empty=True),
    "bias": whole("1: with a bias", empty=True),
    "input_grad": whole("1: the backward also gives the input's gradient", empty=True),
    "gemm_m": count("rows of the left matrix", empty=True),
    "gemm_k": count("columns of the left matrix, which are summed over", empty=True),
    "gemm_n": count("columns of the right matrix", empty=True),
    "heads": count("attention heads", empty=True),
    "q_len": count("queries", empty=True),
    "kv_len": count("keys and values", empty=True),
    "head_dim": count("width of a head", empty=True),
    "rows": count("rows that are normalised one by one", empty=True),
    "columns": count("elements that are normalised or reduced together", empty=True),
    "elements": count("elements of the output", empty=True),
    "pieces": count("tensors that are joined", empty=True),
    "outer": count("slow index of the flattened tensor", empty=True),
    "inner": count("fast index of the flattened tensor; pixels of a channel", empty=True),
    "broadcast": text("how a smaller second input is repeated", empty=True),
    "inplace": whole("1: writes over its input", empty=True),
    "training": whole("1: with the batch's own statistics", empty=True),
    "layout": text("memory order; of a GEMM's matrices: n by rows, t by columns", empty=True),
}

CEILINGS = {
    **DEVICE, **DTYPE,
    "peak_gflops": number("best rate of a matrix product; empty on bandwidth rows", empty=True),
    "peak_gbps": number("triad bandwidth; empty on compute rows", empty=True),
    "level": choice("what holds the working set", "compute", "L1", "L2", "L3", "RAM", "device"),
    "source": choice("measured here or stated by the vendor", "measured", "vendor"),
    "method": text("how"),
    "working_set_mb": number("10^6 bytes touched by one call; empty for a vendor's", empty=True),
    "threads": whole("torch CPU threads; 0 for a vendor's"),
    "median_ms": number("median time of one call; empty for a vendor's", empty=True),
    "iqr_ms": number("its interquartile range", empty=True),
    "n": whole("samples; 0 for a vendor's"),
    **VERDICT, **IDS,
}

OVERHEADS = {
    **DEVICE,
    "what": text("timer_step, timer_call, timer_jitter, launch, first_touch"),
    "median_us": number("median"),
    "p99_us": number("99th percentile"),
    "n": count("samples"),
    "method": text("how"),
    **IDS,
}

CONFIGS = {
    **CONFIG, **OP,
    "parameters": text("its parameters, as JSON"),
    **TIMED, **HOW, **WORK,
    "footprint_mb": number("memory needed to time it, at most, in 10^6 bytes", empty=True),
    **STATUS,
}

REPEATS = {
    **CONFIG,
    "round": whole("round of the sweep"),
    "latency_ms": number("median of this visit's samples", empty=True),
    "n": whole("samples of this visit"),
    "calls": whole("calls in a row in one sample"),
    "spread_ms": number("interquartile range of the samples", empty=True),
    "at_s": number("seconds since the worker began"),
    "visit_s": number("length of the visit, set-up included"),
    "other_cores": number("CPU cores used by other processes"),
    "stolen_cores": number("CPU cores taken by the host (steal time)"),
    "yardstick_ms": number("slower reference kernel beside the visit; empty on GPUs", empty=True),
    **STATUS,
    "gpu_others": number("share of the GPU's time that others used", empty=True, default=nan),
    "gpu_mhz": number("clock of the GPU after the visit", empty=True, default=nan),
    "gpu_throttled": text("what throttled the GPU; empty: nothing", empty=True, default=""),
    "gpu_unknown": text("why gpu_others is unknown", empty=True, default=""),
}

ENERGIES = {
    **CONFIG,
    "energy_j": number("energy of one call, idle power included", empty=True),
    "calls": whole("calls in the loop"),
    "loop_s": number("length of the loop, all of its set-up included"),
    **ENERGY,
}

SWEEP = {
    **OP, **PARAMETERS, **TIMED, **DEVICE,
    "latency_ms": number("median over the rounds' medians", empty=True),
    "latency_iqr_ms": number("interquartile range over the rounds", empty=True),
    "n": whole("rounds"),
    **HOW, **WORK,
    "gflops": number("flops / latency", empty=True),
    "gbps": number("bytes / latency", empty=True),
    "energy_j": number("energy of one call, idle power included", empty=True),
    **STATUS, **VERDICT, **IDS, **CONFIG, **THREADS,
    "low_ms": number("smallest round", empty=True),
    "high_ms": number("largest round", empty=True),
    "other_cores": number("CPU cores used by other processes, median", empty=True),
    **ENERGY, **TF32,
}

POWER = {
    **OP,
    "gemm_m": count("rows of the left matrix"),
    "gemm_k": count("columns of the left matrix, which are summed over"),
    "gemm_n": count("columns of the right matrix"),
    "dtype": text("element type; other types keep their published name"),
    "latency_ms": number("one call, back to back", empty=True),
    "flops": number("FLOPs from the shapes"),
    "power_w": number("mean of the sensor while the calls repeat", empty=True),
    "limit_w": number("the card's power limit", empty=True),
    "window": choice("long: enough for the sensor's mean", "long", "short"),
    **STATUS, **IDS,
}

POINTS = {
    "label": text("the point's name for people"),
    "env": text("where it ran: a label of the environment, or the hardware id"),
    "arch": text("the model, or the operator family"),
    **BACKEND,
    "batch_size": whole("samples; 0 where there is no batch"),
    "precision": choice("element type, or autocast's", "fp64", "fp32", "tf32", "bf16", "fp16"),
    "elapsed_sec": number("one step, pass, call, or all counted kernels"),
    "images_per_sec": number("batch_size / elapsed_sec; empty: no batch", empty=True),
    "ai": number("arithmetic intensity: flops / bytes"),
    "attained_gflops": number("flops / elapsed_sec"),
    "peak_gflops": number("the compute roof"),
    "peak_gbps": number("the memory roof of `level`"),
    "bytes_source": choice("compulsory: least traffic; estimated: with assumed types",
                           "compulsory", "estimated", "counted"),
    "bound": choice("what bounds the time", "compute", "L1", "L2", "L3", "RAM", "device", "launch"),
    "kind": choice("what the point is", "step", "network", "operator", "counted"),
    "family": text("workload, model or operator family: the colour of the point"),
    "calls": count("operators (or kernels) in elapsed_sec"),
    "occurrences": count("how often the network holds this work"),
    "flops": number("FLOPs in elapsed_sec"),
    "bytes": number("bytes in elapsed_sec"),
    "level": choice("memory level whose roof counts", "L1", "L2", "L3", "RAM", "device"),
    "attainable_gflops": number("the roof at this intensity"),
    "below_roof": number("attainable / attained performance; below 1: above the roof"),
    "roof_dtype": choice("of the compute roof", "fp64", "fp32", "tf32", "bf16", "fp16"),
    "roof_source": choice("measured here or stated by the vendor", "measured", "vendor"),
    **VERDICT, **IDS,
}
