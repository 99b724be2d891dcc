"""Columns that several tables share, alone or in groups."""

from math import nan

from lib.tables.column import choice, count, number, switch, text, whole

NO_ENERGY = "measured before power was recorded"

TF32 = {"tf32": switch("whether fp32 may have been multiplied as TF32 on a GPU", default=False)}
VERDICT = {"verdict": choice("how far to trust the row", "stable", "noisy", "unusable")}
BACKEND = {"backend": choice("device type", "cpu", "cuda", "mps")}
DEVICE = {"device": text("device id: cpu, cuda:0 or mps")}
DTYPE = {"dtype": text("element type")}
PRECISION = {"precision": choice("fp32, or the autocast type", "fp32", "bf16", "fp16")}
THREADS = {"threads": count("torch CPU threads")}
ARCH = {"arch": text("model name")}
BATCH_SIZE = {"batch_size": count("samples per batch")}
CONFIG = {"config": text("hash of the configuration: what is measured and how")}
OP = {"op": text("operator family")}
LEARNER = {"learner": text("name of the learner")}
DATA_SOURCE = {
    "data_source": choice("source of the images", "medmnist", "synthetic", "imagefolder"),
}
IDS = {
    "hardware_id": text("which machine: a hash of its hardware"),
    "software_id": text("which software: a hash of versions, threads and math settings"),
}
WORK = {
    "flops": number("FLOPs from the shapes", empty=True),
    "bytes": number("compulsory bytes from the shapes", empty=True),
}
INTERVAL = {
    "low_ms": number("90 % interval, low end", empty=True),
    "high_ms": number("90 % interval, high end", empty=True),
}
ENERGY = {
    "power_w": number("mean power, idle power included", empty=True, default=nan),
    "idle_w": number("idle power, logged in the same session", empty=True, default=nan),
    "energy_method": text("meter, and how it was read", empty=True, default="not measured"),
    "energy_n": whole("samples of the meter during the measurement", empty=True, default=0),
    "energy_disagreement": number("integrated power / energy counter - 1",
                                  least=None, empty=True, default=nan),
    "energy_reason": text("why there is no energy", empty=True, default=NO_ENERGY),
}
TIMED = {
    **DTYPE,
    "pass": choice("forward or backward pass", "forward", "backward"),
}
HOW = {
    "latency_type": choice("kernel: calls back to back; end_to_end: each alone",
                           "kernel", "end_to_end"),
    "cache": choice("warm: buffers just used; cold: in no cache", "warm", "cold"),
}
STATUS = {
    "status": choice("ok, or the reason why there is no time", "ok", "skipped", "failed"),
    "reason": text("error message; empty when the status is ok", empty=True),
}
