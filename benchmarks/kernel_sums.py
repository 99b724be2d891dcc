"""Networks of cards whose kernels nobody measured, by sums of kernels alone: the median network of each family, by kind."""

from collections.abc import Iterator

import pandas as pd

from lib import paths
from lib.errors import InputError
from lib.predict import published, registry
from lib.predict.advice.query import CapturedQuery
from lib.predict.cards import learning
from lib.predict.networks import architectures
from lib.predict.scores import score_by
from lib.progress import track
from lib.work.run_config import RunConfig

_TORCH = {"infer rtx-3090": "2.4.0", "infer rtx-4090": "2.4.0", "infer rtx-pro-6000-max-q": "2.9.1",
          "train rtx-3090": "1.12"}  # of the table that is scored of each card
TIMM = paths.ROOT.parent / "shared" / "data" / "timm"
MOST = 1_000  # families of each card
TOY = {"MOST": 1}
_ALIKE = 0.05  # of the stated parameters, beyond which timm built another network (with merged branches)


def _medians(table: pd.DataFrame) -> pd.DataFrame:
    """Return the network of median latency of each family of each card: eager, in fp16 under autocast."""
    rows = table[(table["torch"] == (table["mode"] + " " + table["device"]).map(_TORCH)) & ~learning.is_final(table["module"])]
    rows = rows.query("precision == 'amp_fp16' and layout == 'nchw' and compiled == False").sort_values("latency_ms")
    families = rows.groupby(["device", "mode", "module"])
    medians = rows[families.cumcount() == families["network"].transform("size") // 2]
    return medians.groupby(["device", "mode"]).head(MOST)


def sums(table: pd.DataFrame) -> Iterator[dict]:
    """Yield a row a network of ``whole_networks``: measured and predicted ms, and an interval; steps without optimizer."""
    predictors = {device: registry.predictor(device, "fp16") for device in table["device"].unique()}
    for row in track(table.to_dict("records"), "networks"):
        sample = f"3x{row['image_size']}x{row['image_size']}"
        config = RunConfig(f"timm:{row['network']}", int(row["batch_size"]), sample, row["mode"], "fp16")
        try:
            work = CapturedQuery(config).work(device_type="cuda")
        except InputError as error:
            print(f"   {row['network']}: {error}")
            continue
        if abs((work.weight_bytes / 4 - work.input_values) / 1e6 / row["parameters_m"] - 1) < _ALIKE:
            answer = predictors[row["device"]].estimate(work)
            yield {"device": row["device"], "mode": row["mode"], "network": row["network"],
                   "kind": architectures.of_work(work.table), "latency_ms": row["latency_ms"],
                   "predicted_ms": answer.predicted_ms, "low_ms": answer.low_ms, "high_ms": answer.high_ms}


def main() -> None:
    """Print the errors by card, mode and kind of network."""
    if TIMM.is_dir():
        published.import_tables("timm", TIMM)
    try:
        table = learning.tables()
    except InputError as error:
        print(f"   skipped: {error}")
        return
    rows = pd.DataFrame(sums(_medians(table)))
    for by in (["device", "mode", "kind"], ["device", "mode"]):
        scored = score_by(rows, by, "latency_ms", "_ms")
        print(scored[[*by, "mape", "median", "bias", "cover", "n"]].round(1).to_string(index=False), flush=True)
