"""Numbers of a fine-tune, for the sentences of 09_finetune, and its key numbers."""

import pandas as pd

from lib.report.sentences import Numbers, first
from lib.studies.finetune.study import Study, measured_ms
from lib.studies.finetune.tables import recomputed


def learning(epochs: pd.DataFrame, monitor: str) -> Numbers:
    """Return how loss and monitored metric went, the rate, and the energy of an image; ``epochs``: ``tables.epochs``."""
    ranked = epochs[epochs["monitored"].notna()].sort_values("monitored", ascending=monitor == "val_loss", kind="stable")
    joules = epochs["energy_j"] / (epochs["images_per_sec"] * epochs["train_s"])
    return {"epochs": len(epochs) or None, "monitor": monitor, "images_per_sec": epochs["images_per_sec"].median(),
            "image_j": joules.median(), "no_energy": bool(joules.isna().all()), **first(ranked, "best_"),
            "last_is_best": len(epochs) > 1 and len(ranked) > 0 and ranked.index[0] == epochs.index[-1],
            **first(epochs, "first_"), **first(epochs.iloc[::-1], "last_")}


def worth(metrics: pd.DataFrame) -> Numbers:
    """Return what the best weights reach on test, without a test split on val; ``metrics``: ``tables.metrics``."""
    table = metrics.set_index("metric").reindex(["acc@1", "acc_macro", "auroc_macro"])
    split = "test" if table["test"].notna().any() else "val"
    accuracy, macro, auroc = table[split]
    return {"split": split, "accuracy": accuracy, "macro": macro, "auroc": auroc,
            "over_val": 100 * (table["test"] - table["val"])["acc@1"]}


def predicted(table: pd.DataFrame) -> Numbers:
    """Return how far the prediction is off, and which device would be fastest; ``table``: ``study.predicted``."""
    run = first(table)
    fastest = first(table.sort_values("predicted_ms"), "fastest_")
    if not len(table):
        return {**run, **fastest, **dict.fromkeys(("devices", "error", "inside", "elsewhere", "faster"))}
    return {**run, **fastest, "devices": len(table), "error": run["predicted_ms"] / run["measured_ms"] - 1,
            "inside": bool(run["low_ms"] <= run["measured_ms"] <= run["high_ms"]),
            "elsewhere": fastest["fastest_device"] != run["device"],
            "faster": run["predicted_ms"] / fastest["fastest_predicted_ms"]}


def resumed(table: pd.DataFrame) -> Numbers:
    """Return how many values of an interrupted run differ from those of the run in one go; ``table``: ``study.resumed``."""
    return {"compared": table["compared"].sum() or None, "different": table["different"].sum(),
            **first(table.sort_values("different", ascending=False), "worst_")}


def key_numbers(results: Study, phases: pd.DataFrame, predictions: pd.DataFrame,
                table: pd.DataFrame) -> dict[str, tuple[float | str, str, float | None]]:
    """Return the key numbers: name to value, unit and tolerance; ``table`` as for ``resumed``."""
    numbers = {name: (value, "") for name, value in recomputed(results).items()}
    train = phases[phases["task_type"] == "train"]
    if len(train):
        numbers["unexplained share of the step"] = (train.iloc[0]["unaccounted_pct"], "%")
    if len(predictions):
        step = predictions.iloc[0]
        numbers |= {"predicted step": (step["predicted_ms"], "ms"),
                    "predicted forward and backward": (step["forward_ms"] + step["backward_ms"], "ms"),
                    "measured step": (step["measured_ms"], "ms"),
                    "measured forward and backward": (measured_ms(results.rows)["passes_ms"], "ms")}
    checked = {"values that differ after a resume": (table["different"].sum(), "", 0.0)} if len(table) else {}
    rate = pd.DataFrame(results.summary["history"])["images_per_sec"].median()
    return {**{name: (*number, 0.001) for name, number in numbers.items()}, **checked, "throughput": (rate, "images/s", None)}
