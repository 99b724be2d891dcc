"""A run in its folder: trained from the beginning or from its last state, and evaluated."""

import math
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from lib import files, locks, store
from lib.errors import InputError, choices, is_out_of_memory
from lib.finetune import data as run_data
from lib.finetune import folders, models, optimization
from lib.finetune.config import TrainConfig
from lib.finetune.metrics import Evaluation, SplitMetrics, check_monitor, collection, plain
from lib.finetune.reports import Reports, logged, resumed, slashed
from lib.finetune.tracking import TrackedRun
from lib.finetune.transforms import gpu_augmentation
from lib.measure import machine
from lib.measure.energy.meters import open_meter
from lib.measure.energy.windows import Recorder
from lib.measure.training.profile_run import settings
from lib.measure.training.profiled import PASSES
from lib.measure.training.profiler import BatchProfiler, constants
from lib.work import distributed, weights
from lib.work.training import Batch, Observer, Options, Recipe, Trainer

SUMMARY, PROFILE, BEST = "summary.json", "profile.csv", "best.pt"
_ORPHANS_S = 20.0  # workers of a loader may outlive a killed run so long; they hold its lock
_FETCH_S = 0.5  # between two fetches of losses from the device
_KINDS = {split: kind for kind, split in PASSES.items()}  # what a pass is called in a profile


@dataclass
class Progress:
    """The progress of a run: the epoch, its finished batches and their seconds.

    ``sums`` are this process's sums of the epoch's loss, right samples and samples. ``history`` has
    one record per epoch.
    """

    epoch: int = 0
    batch: int = 0
    seconds: float = 0.0
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    best: float = math.nan
    best_epoch: int = -1
    history: list[dict[str, float]] = field(default_factory=list)


class Run:
    """A run while it is trained: its parts, in the last state that was saved, if there is one."""

    def __init__(self, config: TrainConfig, folder: Path, device: torch.device, accelerator: Any):
        """Resolve data and model; InputError for whatever is missing or does not fit."""
        self.config, self.folder, self.device = config, folder, device
        self.accelerator, self.first = accelerator, accelerator.is_main_process
        self.reports = self.tracked = self.profile = None  # but in the first process
        self.events, self.checkpoints = config.folders(folder)
        self.task, self.data = models.prepare(config, folder.name)
        classes = len(self.data.labels)
        check_monitor(config.monitor_metric, config.eval_topk, classes, self.task.multi_label)
        if config.batch_size % accelerator.num_processes:
            raise InputError(f"batch_size {config.batch_size} cannot be shared by "
                             f"{accelerator.num_processes} processes; choose a multiple")
        if self.first:
            folders.stored_config(folder, config)
            counts = [f"{len(indices):,} of {len(self.data.splits[split].labels):,} {split} samples"
                      for split, indices in self.data.indices.items()]
            print(f"{self.data.note}\n{choices(counts)}; {classes} classes; at most "
                  f"{config.max_datapoints_per_class} samples per class in "
                  f"{choices(config.capped_splits)}", flush=True)
            measured = collection(classes, self.task.multi_label, config.eval_topk)
            if lacking := [k for k in {*config.eval_topk} - {1} if f"acc@{k}" not in measured]:
                print(f"eval_topk {choices(sorted(lacking))} left out: there are {classes} classes"
                      f"{', and a sample may have several' if self.task.multi_label else ''}")
        self.loaders = {split: self._loader(split) for split in self.data.splits}
        self.loader = self.loaders["train"]
        self.trainer = self._trainer()
        self.progress = Progress(**distributed.load_state(accelerator, self.checkpoints))
        if not self.first:
            self.progress.sums = Progress().sums  # the first process has those of all

    def _loader(self, split: str) -> Any:
        """Return the loader of a split; each process has its share of every batch."""
        used = torch.utils.data.Subset(self.data.splits[split], self.data.indices[split])
        loader = run_data.loader(self.config, used, split == "train", self.device.type == "cuda")
        return self.accelerator.prepare_data_loader(loader)

    def _trainer(self) -> Trainer:
        """Build model, optimizer and schedule; all processes begin with the same weights."""
        from accelerate.utils import set_seed

        config = self.config
        steps = math.ceil(len(self.loader) / config.grad_accum_steps) * config.epochs
        set_seed(config.seed)
        recipe = Recipe(partial(optimization.optimizer, config),
                        partial(optimization.schedule, config, steps=steps), config.max_grad_norm,
                        gpu_augmentation() if config.gpu_batch_aug else None)
        options = Options(self.device, config.precision, config.channels_last,
                          config.grad_accum_steps, self.device.type == "cuda")
        trainer = Trainer(self.task, options, recipe)
        trainer.distribute(self.accelerator)
        set_seed(config.seed, device_specific=True)
        return trainer

    @property
    def batches(self) -> int:
        """Return how many batches are trained."""
        return self.progress.epoch * len(self.loader) + self.progress.batch

    def open_records(self, stack: ExitStack) -> None:
        """Open the reports and the profile, which the first process writes, until a stack ends."""
        if not self.first:
            return
        config, path = self.config, self.folder / PROFILE
        if config.mlflow:
            tracked = TrackedRun(self.folder, config.dataset, config.content())
            self.tracked = stack.enter_context(tracked)
        reports = Reports(self.folder, self.events, self.batches)
        self.reports = stack.enter_context(closing(reports))
        if config.profile and not path.exists():
            store.write_meta(path, "profile", run_id=self.folder.name, data_note=self.data.note,
                             started_utc=store.utc_now(), parameters=config.content(),
                             **machine.identity())
        if config.profile:
            self.profile = stack.enter_context(closing(resumed(path, "profile", self._kept)))

    def _kept(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of a profile without those of batches that are done again."""
        count = self.batches + self.progress.epoch * len(self.loaders["val"])
        if len(rows) < count:
            raise InputError(f"{self.folder / PROFILE} lacks rows: it has fewer than the {count} of "
                             "its state; name another folder")
        return rows.head(count)

    def _observer(self, split: str, step: int, recorder: Recorder | None = None) -> Observer:
        """Return what writes the profile's rows of a pass, if there is a profile."""
        if not self.profile:
            return Observer()
        facts = constants(self.folder.name, self.task.workload, _KINDS[split], self.device,
                          self.config.num_workers, self.config.precision, self.data.data_source)
        observer = BatchProfiler(self.profile, facts, self.device, recorder=recorder, step=step)
        observer.epoch = self.progress.epoch
        return observer

    def _on_device(self, loader: Iterable) -> Iterable:
        return run_data.Prefetched(loader, self.device) if self.device.type == "cuda" else loader

    def train(self, after_epoch: Callable[[int], None]) -> None:
        """Train the epochs that are left; after each, validate, and save weights and state."""
        progress, config = self.progress, self.config
        if progress.epoch and not progress.batch:
            self._keep_weights()  # a run may be killed between a state and its weights
        for epoch in range(progress.epoch, config.epochs):
            record = self._train_epoch()
            evaluation = self.evaluate("val")
            value, rate = evaluation.values[config.monitor_metric], record["images_per_sec"]
            self._note_best(value)
            progress.history.append({**record, **evaluation.values})
            self._report({"train/epoch_loss": record["train_loss"],
                          "train/epoch_acc@1": record["train_acc@1"],
                          f"best/{config.monitor_metric}": progress.best,
                          "energy/epoch_j": record["energy_j"],
                          "throughput/epoch_images_per_sec": rate}, evaluation)
            if self.first:
                print(f"epoch {epoch + 1}/{config.epochs}: train loss {record['train_loss']:.4f}, "
                      f"{config.monitor_metric} {value:.4f} (best {progress.best:.4f}), "
                      f"{rate:,.0f} images/s", flush=True)
            progress.epoch, progress.batch, progress.seconds = epoch + 1, 0, 0.0
            progress.sums = Progress().sums
            self.save()
            self._keep_weights()
            after_epoch(epoch)

    def save(self) -> None:
        """Save the state, from which the run resumes; every process calls this."""
        if self.reports:
            self.reports.flush()
        progress = asdict(self.progress)
        progress["sums"] = distributed.gathered_sums(progress["sums"])
        name = f"{self.progress.epoch:06d}-{self.progress.batch:08d}"
        distributed.save_state(self.accelerator, self.checkpoints, name, progress)

    def _train_epoch(self) -> dict[str, float]:
        """Train the rest of an epoch; return the record of the whole epoch."""
        from accelerate import skip_first_batches

        progress, done = self.progress, self.progress.batch
        self.loader.set_epoch(progress.epoch)
        loader = skip_first_batches(self.loader, done) if done else self.loader
        with Recorder(open_meter(str(self.device))) as recorder:
            log = BatchLog(self, self._observer("train", self.batches, recorder))
            begin = time.perf_counter()
            self.trainer.train(self._on_device(loader), log, done)
            log.fetch()
            end = time.perf_counter()
        metered = self.device.type == "cuda" or self.accelerator.is_local_main_process
        energy_j = recorder.energy(begin, end).energy_j if metered else 0.0
        loss, right, samples, energy_j = distributed.gathered_sums([*progress.sums, energy_j])
        return {"epoch": progress.epoch, "step": self.batches - 1, "train_loss": loss / samples,
                "train_acc@1": right / samples, "lr": self.trainer.optimizer.param_groups[0]["lr"],
                "train_s": progress.seconds, "images_per_sec": samples / progress.seconds,
                "energy_j": math.nan if done else energy_j}

    def evaluate(self, split: str) -> Evaluation:
        """Evaluate a split, each process its share; every process calls this."""
        loader, left = self.loaders[split], len(self.data.indices[split])
        metrics = SplitMetrics(split, len(self.data.labels), self.task.multi_label,
                               self.config.eval_topk, self.device)
        observer = self._observer(split, self.progress.epoch * len(loader) if split == "val" else 0)
        for _, *batch in self.trainer.predict(self._on_device(loader), observer):
            gathered = self.accelerator.gather(batch)
            logits, targets = (part[:left] for part in gathered)  # the last batch is filled up
            logits, left = logits.float(), left - len(targets)
            loss = self.trainer.loss(logits, targets).expand(len(targets))
            metrics.update(loss, self.task.scores(logits), targets)
        return metrics.compute()

    def _note_best(self, value: float) -> None:
        """Note the value of an epoch where it is the best so far."""
        progress, sign = self.progress, -1 if self.config.monitor_mode == "min" else 1
        first = math.isnan(progress.best) and not math.isnan(value)
        if first or sign * value > sign * progress.best:
            progress.best, progress.best_epoch = value, progress.epoch

    def _keep_weights(self) -> None:
        """Keep the weights of the epoch that has ended where it is the best, or all are kept.

        Every process calls this.
        """
        config, progress, epoch = self.config, self.progress, self.progress.epoch - 1
        if self.first and progress.best_epoch == epoch:
            weights.save(self.trainer.model.state_dict(), self.checkpoints / BEST)
            meta = {"best_value": progress.best, "epoch": epoch, "best_ckpt": BEST,
                    "monitor": config.monitor_metric, "mode": config.monitor_mode}
            store.write_json(meta, self.checkpoints / "_best_meta.json")
        if self.first and config.save_per_epoch_checkpoint:
            path = self.checkpoints / f"epoch_{epoch:03d}.pt"
            weights.save(self.trainer.model.state_dict(), path)
        self.accelerator.wait_for_everyone()  # all processes read the best weights for the test

    def _report(self, values: dict[str, float], evaluation: Evaluation) -> None:
        """Report values and an evaluation after the last batch that was trained."""
        step, epoch = self.batches - 1, len(self.progress.history) - 1
        values = {name: value for name, value in values.items() if not math.isnan(value)}
        if self.reports:
            self.reports.scalars(values, step, epoch)
            self.reports.evaluation(evaluation, step, epoch, self.data.labels)
        if self.tracked:
            self.tracked.log({**values, **slashed(evaluation.values)}, epoch)

    def finish(self) -> dict[str, Any]:
        """Evaluate the best weights on test, where there is one; write and return the summary."""
        progress, history, tested = self.progress, self.progress.history, {}
        advice = "a smaller lr, more warm-up, max_grad_norm, fp32, another monitor_metric may help"
        if progress.best_epoch < 0:
            raise InputError(f"{self.config.monitor_metric} is no number after any epoch: {advice}")
        if math.isnan(history[-1]["val_loss"]):
            raise InputError(f"val_loss is no number after the last epoch: {advice}")
        if "test" in self.data.splits:
            weights.load_model(self.trainer.model, self.checkpoints / BEST)
            evaluation = self.evaluate("test")
            tested = evaluation.values
            self._report({}, evaluation)
        summary = plain({
            "run": self.folder.name, "dataset": self.config.dataset, "labels": self.data.labels,
            "folder": str(self.folder), "monitor": self.config.monitor_metric,
            "best_value": progress.best, "best_epoch": progress.best_epoch, "epochs": len(history),
            "batches": self.batches, "train_s": sum(record["train_s"] for record in history),
            "history": history, "test": tested, "device": str(self.device),
            "finished_utc": store.utc_now()})
        if self.first:
            store.write_json(summary, self.folder / SUMMARY)
        return summary


class BatchLog(Observer):
    """Observes an epoch of a run beside ``rows``: adds up its batches, reports them, saves states.

    Losses stay on the device, and are fetched twice a second.
    """

    def __init__(self, run: Run, rows: Observer):
        self._run, self._rows = run, rows
        self.start, self.mark = rows.start, rows.mark
        # samples, lr, time, loss with right
        self._waiting: list[tuple[int, float, float, torch.Tensor]] = []
        self._fetched_s = time.perf_counter()
        self._begin_s = self._fetched_s - run.progress.seconds

    def end(self, batch: Batch) -> None:
        """Note a batch; InputError where the loss of a fetched batch is no number."""
        self._rows.end(batch)
        progress, config = self._run.progress, self._run.config
        logits, targets = batch.logits, batch.targets
        if targets.ndim == 1:
            right = (logits.argmax(1) == targets).float().sum()
        else:  # of each sample, the share of right labels
            right = ((logits > 0) == (targets > 0.5)).float().mean(1).sum()
        both = torch.stack([batch.loss.detach().float(), right])
        self._waiting.append((len(targets), batch.lr, time.time(), both))
        progress.batch += 1
        due = batch.stepped and progress.batch < len(self._run.loader) and \
            progress.batch // config.grad_accum_steps % config.checkpoint_steps == 0
        if due or time.perf_counter() - self._fetched_s >= _FETCH_S:
            self.fetch()
        if due:
            self._run.save()

    def fetch(self) -> None:
        """Add the waiting batches to the sums, in their order, and report them."""
        run, progress, waiting = self._run, self._run.progress, self._waiting
        self._waiting, number = [], run.batches - len(waiting)
        fetched = torch.stack([both for *_, both in waiting]).tolist() if waiting else []
        for (samples, lr, at_s, _), (loss, right) in zip(waiting, fetched, strict=True):
            added = (loss * samples, right, samples)
            progress.sums = [total + one for total, one in zip(progress.sums, added, strict=True)]
            if run.reports:
                values = {"train/step_loss": loss, "train/step_acc@1": right / samples,
                          "train/lr": lr}
                run.reports.scalars(values, number, progress.epoch, at_s)
            if not math.isfinite(loss):
                raise InputError(f"the loss is {loss} at step {number} (epoch {progress.epoch}, lr "
                                 f"{lr:.3g}): training stops; a smaller lr, more warm-up, "
                                 "max_grad_norm or fp32 may help")
            number += 1
        self._fetched_s = time.perf_counter()
        progress.seconds = self._fetched_s - self._begin_s


def train(config: TrainConfig, folder: Path, device: str, threads: int = 0,
          after_epoch: Callable[[int], None] = lambda epoch: None) -> dict[str, Any]:
    """Train a config in ``folder``, from its last state if there is one; return its summary.

    ``device`` is an id, such as cuda:0; of several processes each has its own. ``threads`` 0 are
    the config's. ``after_epoch`` is called with each epoch once its state is saved; it may raise to
    stop. Raises InputError for a config that cannot be run, a NaN loss, a full disk, and too little
    memory; earlier states stay.
    """
    place = machine.device(distributed.local_device(str(machine.device(device))))
    with ExitStack() as stack:
        accelerator = distributed.accelerator(place.type, config.seed)
        stack.enter_context(settings(place, threads or config.threads, config.deterministic))
        if accelerator.is_main_process:
            stack.enter_context(locks.writer(files.folder(folder), _ORPHANS_S))
            stack.enter_context(logged(folder))
        if (folder / SUMMARY).exists():
            folders.stored_config(folder, config)
            return store.read_json(folder / SUMMARY)
        try:
            run = Run(config, folder, place, accelerator)
            run.open_records(stack)
            run.train(after_epoch)
            return run.finish()
        except (RuntimeError, MemoryError) as error:
            if is_out_of_memory(error):
                raise InputError(f"{folder}: out of memory; a smaller batch_size with more "
                                 "grad_accum_steps takes less") from error
            raise
