"""EnergAIzer's networks on GPUs at locked clocks: ms and joules of a forward pass.

yifueve/energaizer-ispass26-artifact (MIT): whole networks in bf16 or fp32, without autocast, run in
a loop that waits for the GPU after each pass; power sampled by NVML. Attention is never one fused
kernel: its scripts' default is eager, and workloads with and without ``attneager`` take equal time.
"""

import json
from pathlib import Path

import pandas as pd

from lib.errors import InputError, choices
from lib.predict.published.reading import read_csv

LICENCE = "MIT, yifueve/energaizer-ispass26-artifact"
FILES = {"a100.csv": "a100-pcie-40gb", "a10.csv": "a10", "dvfs.csv": "a100-pcie-40gb"}  # devices
_NAME = (r"(?P<network>\w+model_[\w-]+?|resnet101_)_p(?P<dtype>bf16|fp32)_b(?P<batch_size>\d+)"
         r"(?:_s(?P<tokens>\d+))?(?:_modeprefill)?(?:_attneager)?"
         r"_freq(?P<clock_mhz>\d+)_iter\d+\.csv")
_NETWORKS = {  # their names: ours, and the sizes of the public configuration
    "resnet101_": ("resnet101", {}),
    "bertmodel_large": ("hf:bert-large", {
        "model_type": "bert", "hidden_size": 1024, "num_hidden_layers": 24,
        "num_attention_heads": 16, "intermediate_size": 4096}),
    "gpt2model_gpt2": ("hf:gpt2", {"model_type": "gpt2"}),
    "optmodel_opt-1p3b": ("hf:opt-1.3b", {
        "model_type": "opt", "hidden_size": 2048, "word_embed_proj_dim": 2048,
        "num_hidden_layers": 24, "num_attention_heads": 32, "ffn_dim": 8192}),
    "qwen2model_qwen2-1p5b": ("hf:qwen2-1.5b", {
        "model_type": "qwen2", "hidden_size": 1536, "num_hidden_layers": 28,
        "num_attention_heads": 12, "num_key_value_heads": 2, "intermediate_size": 8960,
        "max_position_embeddings": 131072}),
    "vitmodel_large": ("hf:vit-large", {
        "model_type": "vit", "hidden_size": 1024, "num_hidden_layers": 24,
        "num_attention_heads": 16, "intermediate_size": 4096}),
    "mobilevitmodel_small": ("hf:mobilevit-small", {"model_type": "mobilevit"})}


def read(path: Path) -> pd.DataFrame:
    """Read ``a100.csv``, ``a10.csv`` or ``dvfs.csv``: one row per network, setting and clock.

    Columns: ``device, model, input, dtype, batch_size, clock_mhz`` as locked, ``mean_mhz`` as
    measured (lower where the power limit lowered it), ``measured_ms, energy_j, power_w`` of a pass.
    Raises InputError for another file and for a workload whose name says no settings.
    """
    if path.name not in FILES:
        raise InputError(f"{path} is no file of EnergAIzer: {choices(FILES)}")
    table = read_csv(path, (), ("energy", "time", "avg_freq"), ("workload",))
    settings = table["workload"].str.extract(f"^{_NAME}$")
    unknown = ~settings["network"].isin(_NETWORKS)
    if unknown.any():
        raise InputError(f"{path} has the unknown workload {table['workload'][unknown].iloc[0]!r}; "
                         f"networks are: {choices(_NETWORKS)}")
    model = settings["network"].map({name: ours for name, (ours, _) in _NETWORKS.items()})
    return pd.DataFrame({
        "device": FILES[path.name], "model": model,
        "input": (settings["tokens"] + ":int64").fillna(""), "dtype": settings["dtype"],
        "batch_size": settings["batch_size"].astype(int),
        "clock_mhz": settings["clock_mhz"].astype(float), "mean_mhz": table["avg_freq"],
        "measured_ms": table["time"], "energy_j": table["energy"],
        "power_w": table["energy"] / table["time"] * 1e3})


def write_configs(folder: Path) -> dict[str, str]:
    """Write ``<network>/config.json`` of transformers' networks below a folder.

    Returns the names by which ``advise`` takes the models of ``read``.
    """
    names = {}
    for model, config in _NETWORKS.values():
        names[model] = model
        if config:
            place = folder / model.removeprefix("hf:")
            place.mkdir(parents=True)
            text = json.dumps({**config, "attn_implementation": "eager"})
            (place / "config.json").write_text(text)
            names[model] = f"hf:{place}"
    return names
