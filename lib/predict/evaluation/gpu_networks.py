"""What the shipped models of GPUs predict of some networks, beside each roof: written with the models, recomputed by tests."""

from pathlib import Path

import pandas as pd

from lib.measure import archive
from lib.predict import registry
from lib.predict.advise import Asked, Question, source_of

NETWORKS = ("vit_b_16", "resnet50", "efficientnet_b0", "swin_t", "mobilenet_v2")
BATCHES, DTYPES = (1, 64), ("fp32", "bf16")
COLUMNS = ("network", "batch_size", "dtype", "device", "source", "bound", "predicted_ms", "low_ms", "high_ms", "roof_ms",
           "launches_ms")


def path() -> Path:
    """Return where the table lies."""
    return registry.SHIPPED / "networks.csv"


def table(networks: tuple[str, ...] = NETWORKS, dtypes: tuple[str, ...] = DTYPES,
          progress: archive.Progress = lambda items, _: items) -> pd.DataFrame:
    """Return a row (COLUMNS) a network, batch size, element type and GPU that has a model of any element type."""
    rows = []
    for dtype in dtypes:
        gpus = [one for one in registry.for_devices([], dtype) if one.device != "cpu"]
        for network in progress(list(networks), dtype):
            for batch in BATCHES:
                item = Asked(Question(network, batch, dtype=dtype)).work()
                rows += [{"network": network, "batch_size": batch, "dtype": dtype, **_row(one, item)} for one in gpus]
    return pd.DataFrame(rows, columns=COLUMNS)


def _row(one: registry.Shelved, item) -> dict:
    said = one.estimate(item)
    return {"device": one.device, "source": source_of(one, said), "bound": one.bound(item, said)[0],
            "predicted_ms": said.predicted_ms, "low_ms": said.low_ms, "high_ms": said.high_ms, "roof_ms": one.roof_ms(item),
            "launches_ms": one.launches_ms(item)}
