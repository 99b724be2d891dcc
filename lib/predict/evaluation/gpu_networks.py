"""What the shipped models of GPUs predict of some networks, beside each roof: written with the models, recomputed by tests."""

from itertools import product
from pathlib import Path

import pandas as pd

from lib.predict import registry
from lib.predict.advice.query import CapturedQuery
from lib.progress import track
from lib.work.run_config import RunConfig

NETWORKS = "vit_b_16 resnet50 efficientnet_b0 swin_t mobilenet_v2".split()
BATCHES, DTYPES = (1, 64), ("fp32", "bf16")


def path() -> Path:
    """Return where the table lies."""
    return registry.SHIPPED / "networks.csv"


def table() -> pd.DataFrame:
    """Return a row a network, batch size, element type and GPU with a model of its kernels."""
    rows, swept = [], {device for device, _ in registry.model_files(shipped=True)}
    for dtype in DTYPES:
        gpus = [predictor for predictor in registry.for_devices([], dtype) if predictor.device in swept]
        for network, batch in track(list(product(NETWORKS, BATCHES)), dtype):
            work = CapturedQuery(RunConfig(network, batch, dtype=dtype)).work(device_type="cuda")
            for gpu in gpus:
                estimate = gpu.estimate(work)
                rows.append({"network": network, "batch_size": batch, "dtype": dtype, "device": gpu.device,
                             "source": gpu.source(estimate), "bound": gpu.bound(work, estimate.predicted_ms),
                             **estimate.times, "roof_ms": gpu.roof_ms(work), "launches_ms": gpu.launches_ms(work)})
    return pd.DataFrame(rows)
