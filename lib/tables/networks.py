"""Tables of whole networks: what they hold, their measured times, and scores of predictions."""

from math import nan

from lib.tables import shared
from lib.tables.column import choice, count, number, single, switch, text, whole

COMPLEXITY = {
    "network": text("workload id, model name, or module:Class"),
    "batch_size": count("samples of the captured step"),
    "layer": text("module's name in the network, or loss; empty: its own forward", empty=True),
    "op": text("ATen operator; unused: parameters that no operator reads"),
    "calls": whole("how often a step runs it"),
    "params": whole("parameters that this row is the first to use"),
    "activation_bytes": whole("activations of the forward pass that the backward pass reads"),
    "flops_forward": number("all FLOPs of the forward pass; empty: not known", empty=True),
    "flops_backward": number("all FLOPs of the backward pass; empty: not known", empty=True),
    "bytes_forward": whole("compulsory bytes, read and written, of the forward pass"),
    "bytes_backward": whole("compulsory bytes, read and written, of the backward pass"),
}

NETWORKS = {
    "network": text("workload id, model name, or module:Class"),
    "mode": choice("forward without gradients, or forward, loss and backward", "infer", "train"),
    "batch_size": count("samples"),
    "input_shape": text("one sample; empty: the network's usual one", empty=True),
    "dtype": choice("element or autocast type; int8: static", "fp32", "bf16", "fp16", "int8"),
    "channels_last": switch("whether 4-D tensors have channels innermost"),
    **shared.DEVICE,
    "memory": choice("allocator; kept: freed memory stays in the process", "default", "kept"),
    **shared.THREADS,
    "latency_ms": number("median of the passes", empty=True),
    "latency_iqr_ms": number("interquartile range of the passes", empty=True),
    "n": whole("number of measured passes"),
    "usual_share": number("share of passes at the processor's usual speed", empty=True),
    "rss_mb": number("peak growth of resident memory, network included", least=None, empty=True),
    "tensors_mb": number("peak of tensors beyond weights and inputs", empty=True),
    **shared.STATUS, **shared.VERDICT, **shared.IDS,
    "energy_j": number("energy of one pass, idle power included", empty=True, default=nan),
    **shared.ENERGY, **shared.TF32,
    "compiled": switch("whether torch.compile compiled the network", default=False),
    "runtime": text("what ran it (lib/work/runtimes)", default="torch"),
    "instances": count("processes side by side, each on its own ``threads`` cores", default=1),
    "prepare_s": number("export, compilation, loading and first pass; 0: none",
                        empty=True, default=nan),
}

WHOLE_NETWORKS = {
    "device": text("the card, as in params/devices.yaml, or the CPU"),
    "network": text("its name in timm"),
    "module": text("the file of timm that defines it: its family"),
    "image_size": count("height and width of an image"),
    "batch_size": count("images a step"),
    "mode": choice("a forward pass, or a step of training", "infer", "train"),
    "precision": choice("element type, or amp's", "fp32", "bf16", "amp_fp16", "amp_bf16"),
    "layout": choice("order of an image's axes in memory", "nchw", "nhwc"),
    "compiled": switch("whether torch.compile compiled it"),
    "torch": text("version of torch, such as 2.4.0"),
    "images_per_sec": number("measured"),
    "latency_ms": number("a step's time: batch size over images/s"),
    "parameters_m": number("millions of parameters; empty: not stated", empty=True),
    "gmacs": number("10^9 multiply-adds an image; empty: not stated", empty=True),
    "mactivations": number("millions of activations an image; empty: not stated", empty=True),
}

SCORES = {
    "kind": choice("what was predicted", "operator", "network", "step", "memory"),
    "family": text("family and pass, or mode and batch size"),
    **shared.LEARNER,
    "mape": number("mean absolute error, %"),
    "mape_low": number("its 95 % bootstrap interval, low end"),
    "mape_high": number("high end"),
    "median": number("median absolute error, %"),
    "p90": number("90th percentile, %"),
    "within_10": number("share within 10 %, %"),
    "n": count("predictions"),
    "cover": number("share inside the 90 % interval, %; empty: no intervals", empty=True),
}

HELD_OUT = {
    "device": text("what it was measured on"),
    "what": text("what was predicted, and what was held out for it"),
    "kind": text("kind of network, or family of operators; empty: not told apart"),
    "mode": choice("pass of a network or an operator", "infer", "train", "forward", "backward"),
    "condition": text("how it ran: condition of a card, allocator of a CPU, element type"),
    "group": text("what no fold splits, such as the family of the network; empty: not recorded"),
    "case": text("the network (and its image size), the run, or the configuration"),
    "batch_size": count("samples a batch; empty: no batch", empty=True),
    "fold": whole("fold that held it out; empty: each group was held out by itself", empty=True),
    "left_out": text("what the model that predicted it had not seen"),
    "measured": single("ms of a network, a step or an operator; MB of memory; a factor of gains"),
    "predicted": single("in the same unit"),
    "low": single("90 % interval, low end; empty: none", empty=True),
    "high": single("90 % interval, high end; empty: none", empty=True),
    "out_of_range": switch("whether the answer was flagged as outside of the training ranges"),
    "usable": switch("whether repeats of the measurement agree"),
    "networks": whole("networks of the device that corrected the model", empty=True),
    "draw": whole("which of several random choices of these networks"),
    "source": text("who measured it"),
    "licence": text("under which licence it was published"),
}
