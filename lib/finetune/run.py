"""One run in its folder: trained from the beginning or from where it was cut short, evaluated, tested, and recorded."""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch

from lib import files, locks, store
from lib.config.definitions import Workload
from lib.errors import InputError, choices
from lib.finetune import data as run_data
from lib.finetune import networks, optimization
from lib.finetune.checkpoints import BEST, Checkpoints
from lib.finetune.config import Classes, TrainConfig
from lib.finetune.folders import stored_config
from lib.finetune.metrics import Evaluation, check_monitor, evaluate, names, plain
from lib.finetune.tensorboard import Log, resumed
from lib.finetune.transforms import gpu_augmentation
from lib.measure import machine
from lib.measure.energy.meters import open_meter
from lib.measure.energy.windows import Recorder
from lib.measure.training.profile_run import settings
from lib.measure.training.profiled import PASSES
from lib.measure.training.profiler import BatchProfiler, constants
from lib.work import losses, weights
from lib.work.processes import ALONE, Processes
from lib.work.training import Batch, Observer, Options, Recipe, Trainer, seed_everything
from lib.work.workloads import Task

SUMMARY, PROFILE = "summary.json", "profile.csv"
_FETCH_S = 0.5  # between two fetches of values from the device
_ORPHANS_S = 20.0  # workers of a loader may outlive a killed run so long; they hold its lock
_KINDS = {split: kind for kind, split in PASSES.items()}  # what a pass over a split is called in a profile


@dataclass(frozen=True)
class FinetuneTask(Task):
    """A task whose model and loss are those of a config."""

    network: networks.Network
    labels: Classes
    loss_name: str

    def model(self) -> torch.nn.Module:
        """Build the model for the classes."""
        return self.network.build(self.labels)

    def loss(self) -> torch.nn.Module:
        """Return the config's loss."""
        return losses.build(self.loss_name, self.multi_label)


def _task(config: TrainConfig, folder: Path) -> tuple[FinetuneTask, run_data.Data]:
    """Resolve data and model; InputError where they are missing or do not fit."""
    names_there, facts = run_data.names_and_facts(config)
    network = networks.network(config, facts)
    data = run_data.open_data(config, network.inputs, names_there)
    facts = replace(facts, channels=network.inputs.channels, classes=len(data.labels))
    workload = Workload.model_construct(id=folder.name, dataset=config.dataset, size=network.inputs.size,
                                        model=config.model_flavour, batch_size=config.batch_size)
    return FinetuneTask(workload, facts, network, data.labels, config.loss_name), data


class _Step(NamedTuple):
    """A batch whose loss and right samples wait on the device, ``both`` of shape (2,)."""

    number: int
    samples: int
    lr: float
    unix_s: float
    both: torch.Tensor


class _Watch:
    """Observes an epoch: writes its rows, adds up and logs its batches, and saves checkpoints between its steps.

    Losses stay on the device, and are fetched twice a second.
    """

    def __init__(self, run: "Run", rows: Observer):
        self._run, self._rows = run, rows
        self.start, self.mark = rows.start, rows.mark
        self._waiting: list[_Step] = []
        self.since_s = self._fetched_s = time.perf_counter()  # of the seconds that the position has not yet; of the last fetch
        self._rate_since_s, self._images = None, 0

    def end(self, batch: Batch) -> None:
        """Note a batch; InputError where the loss of a fetched batch is no number, and errors of the run's ``check``."""
        self._rows.end(batch)
        run, position, now = self._run, self._run.position, time.perf_counter()
        size = run.batches.share(batch.index)
        both = torch.stack([value.detach().float() for value in (batch.loss, _right(batch.logits, batch.targets))])
        self._waiting.append(_Step(position.batches, size, batch.lr, time.time(), both))
        position.batch += 1
        position.batches += 1
        position.samples += size
        position.rows += isinstance(self._rows, BatchProfiler)
        position.steps += batch.stepped
        self._rate_since_s, self._images = self._rate_since_s or now, self._images + size * bool(self._rate_since_s)
        if now - self._fetched_s >= _FETCH_S:
            self.fetch()
        if batch.stepped and run.checkpoints.due(position.steps):
            self.save()
        run.check()

    def save(self) -> None:
        """Save the state, after checking that no loss is NaN."""
        position, now = self._run.position, time.perf_counter()
        position.seconds += now - self.since_s
        self.fetch()
        if self._run.log:
            self._run.log.flush()
        self._run.checkpoints.save(self._run.trainer, position)
        self.since_s, self._rate_since_s, self._images = time.perf_counter(), None, 0

    def fetch(self) -> None:
        """Add the waiting batches to the position's sums, in their order, log and report them; waits for the device."""
        steps, self._waiting = self._waiting, []
        if not steps:
            return
        run, position, shown = self._run, self._run.position, {}
        values = torch.stack([step.both for step in steps]).tolist()
        now = self._fetched_s = time.perf_counter()
        for step, (loss, right) in zip(steps, values, strict=True):
            position.loss += loss * step.samples
            position.right += right * min(step.samples, 1)
            if run.log:
                shown = {"step_loss": loss, "step_acc@1": right / step.samples, "lr": step.lr}
                logged = {f"train/{name}": value for name, value in shown.items()}
                run.log.scalars(logged, step.number, position.epoch, step.unix_s)
            if not math.isfinite(loss):
                raise InputError(f"the loss is {loss} at step {step.number} (epoch {position.epoch}, lr {step.lr:.3g}): "
                                 "training stops; a smaller lr, more warm-up, max_grad_norm or fp32 may help")
        if run.log:
            if self._images:
                shown["images_per_sec"] = self._images / (now - self._rate_since_s)
                run.log.scalars({"throughput/images_per_sec": shown["images_per_sec"]}, step.number, position.epoch)
                self._rate_since_s, self._images = now, 0
            done = (step.number + 1) / (run.batches.batches * run.config.epochs)
            run.report({"step": step.number, "epoch": position.epoch, "epochs": run.config.epochs, "progress": done,
                        "loss": loss, **shown})


def _right(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return how many samples of a batch are right; with several labels, the sum of each sample's share of right labels."""
    if targets.ndim == 1:
        return (logits.argmax(1) == targets).sum()
    return ((logits > 0) == (targets > 0.5)).float().mean(1).sum()


class Run:
    """A run while it is trained: its parts, in the last state that was saved, if there is one."""

    def __init__(self, config: TrainConfig, folder: Path, device: torch.device, processes: Processes = ALONE,
                 check: Callable[[], None] = lambda: None, report: Callable[[dict[str, Any]], None] = lambda values: None):
        """Resolve data and model; InputError for whatever is missing or does not fit."""
        self.config, self.folder, self.device, self.processes, self.check = config, folder, device, processes, check
        self.report = lambda values: report(plain(values))
        self.log: Log | None = None
        self._profile: store.Appender | None = None
        self.task, self.data = _task(config, folder)
        check_monitor(config.monitor_metric, config.eval_topk, len(self.data.labels), self.task.multi_label)
        if processes.first:
            stored_config(folder, config)
            _print_notes(config, self.task, self.data)
        self.batches = run_data.Batches(self.data.indices["train"], config.batch_size, config.grad_accum_steps, config.seed,
                                        processes)
        steps = math.ceil(self.batches.batches / config.grad_accum_steps) * config.epochs
        seed_everything(config.seed)
        recipe = Recipe(partial(optimization.optimizer, config), partial(optimization.schedule, config, steps=steps),
                        config.max_grad_norm,
                        gpu_augmentation() if config.gpu_batch_aug else None, self.batches.weight,
                        processes.parallel if processes.count > 1 else None)
        self.trainer = Trainer(self.task, Options(device, config.precision, config.channels_last, config.grad_accum_steps,
                                                  device.type == "cuda"), recipe)
        seed_everything(config.seed + processes.rank)
        self.checkpoints = Checkpoints(config.folders(folder)[1], config, processes)
        self.position = self.checkpoints.resume(self.trainer)

    def loader(self, split: str, batches: run_data.Batches) -> Iterable:
        """Return the loader of a split."""
        return run_data.loader(self.config, self.data.splits[split], batches, self.device)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Open the log and the profile, which the first process writes, and close them."""
        with ExitStack() as stack:
            if self.processes.first:
                self.log = stack.enter_context(closing(Log(self.folder, self.position.batches,
                                                           self.config.folders(self.folder)[0])))
                if self.config.profile:
                    self._profile = stack.enter_context(closing(self._open_profile()))
            yield

    def _open_profile(self) -> store.Appender:
        """Open ``profile.csv`` without the rows of batches that are done again."""
        path, count = self.folder / PROFILE, self.position.rows

        def done(rows: pd.DataFrame) -> pd.DataFrame:
            if len(rows) < count:
                raise InputError(f"{path} lacks rows: it has fewer than the {count} of its checkpoint; name another folder")
            return rows.head(count)

        if not path.exists():
            store.write_meta(path, "profile", run_id=self.folder.name, started_utc=store.utc_now(), data_note=self.data.note,
                             parameters=self.config.content(), **machine.identity())
        return resumed(path, "profile", done)[0]

    def _observer(self, split: str, epoch: int, step: int, recorder: Recorder | None = None) -> Observer:
        """Return what writes the profile's rows of a pass, if there is a profile."""
        if not self._profile:
            return Observer()
        facts = constants(self.folder.name, self.task.workload, _KINDS[split], self.device, self.config.num_workers,
                          self.config.precision, self.data.data_source)
        observer = BatchProfiler(self._profile, facts, self.device, recorder=recorder, step=step)
        observer.epoch = epoch
        return observer

    def train(self) -> None:
        """Train all epochs that are left; after each, validate, keep the best weights, and save the state."""
        loader = self.loader("train", self.batches)
        while self.position.epoch < self.config.epochs:
            record = self._train_epoch(loader)
            evaluation = self.evaluate("val")
            self.checkpoints.after_epoch(self.trainer, self.position, evaluation.values)
            self.position.history.append({**record, **evaluation.values})
            self._record(record, evaluation)
            self.position.next_epoch()
            self.checkpoints.save(self.trainer, self.position)

    def _train_epoch(self, loader) -> dict[str, float]:
        """Train the rest of an epoch; return the record of the whole epoch."""
        position, whole = self.position, self.position.batch == 0
        self.batches.begin(position.epoch, position.batch)
        with Recorder(open_meter(str(self.device))) as recorder:
            watch = _Watch(self, self._observer("train", position.epoch, position.batches, recorder))
            begin = time.perf_counter()
            self.trainer.train(loader, watch, position.batch)
            watch.fetch()
            end = time.perf_counter()
        position.seconds += end - watch.since_s
        metered = self.device.type == "cuda" or self.processes.local_rank == 0  # a meter a card, or one a machine's CPU
        energy_j = (recorder.energy(begin, end).energy_j if metered else 0.0) if whole else math.nan
        gathered = self.processes.gathered((position.loss, position.right, position.samples, energy_j))
        loss, right, samples, energy_j = map(sum, zip(*gathered, strict=True))
        return {"epoch": position.epoch, "step": position.batches - 1, "train_loss": loss / samples,
                "train_acc@1": right / samples, "lr": self.trainer.optimizer.param_groups[0]["lr"],
                "train_s": position.seconds, "images_per_sec": samples / position.seconds,
                "energy_j": energy_j}

    def evaluate(self, split: str) -> Evaluation:
        """Evaluate a split, each process its share; every process has to call this."""
        self.processes.share_statistics(self.trainer.model)
        samples = self.data.indices[split][self.processes.rank::self.processes.count]
        batches = run_data.Batches(samples, math.ceil(self.config.batch_size / self.processes.count))
        observer = self._observer(split, -1, self.position.epoch * batches.batches if split == "val" else 0)

        def passes() -> Iterator[tuple[torch.Tensor, ...]]:
            for batch in self.trainer.predict(self.loader(split, batches), observer):
                yield batch
                self.position.rows += self._profile is not None
                self.check()

        return evaluate(split, passes(), len(self.data.labels), self.task.multi_label, self.config.eval_topk, self.device)

    def _record(self, record: dict[str, float], evaluation: Evaluation) -> None:
        """Log an epoch and its evaluation, and print a line."""
        if not self.log:
            return
        position, step = self.position, record["step"]
        shown = {"train/epoch_loss": record["train_loss"], "train/epoch_acc@1": record["train_acc@1"],
                 f"best/{self.config.monitor_metric}": position.best, "energy/epoch_j": record["energy_j"],
                 "throughput/epoch_images_per_sec": record["images_per_sec"]}
        self.log.scalars({name: value for name, value in shown.items() if not math.isnan(value)}, step, position.epoch)
        self._publish(evaluation, position.epoch)
        self.log.flush()
        name = self.config.monitor_metric
        print(f"epoch {position.epoch + 1}/{self.config.epochs}: train loss {record['train_loss']:.4f}, {name} "
              f"{evaluation.values[name]:.4f} (best {position.best:.4f}), {record['images_per_sec']:,.0f} images/s", flush=True)

    def _publish(self, evaluation: Evaluation, epoch: int) -> None:
        """Log, write and report an evaluation after the last batch that was trained."""
        if self.log:
            step = self.position.batches - 1
            self.log.evaluation(evaluation, step, epoch, self.data.labels)
            evaluation.write(self.folder)
            self.report({"split": evaluation.split, "step": step, "epoch": epoch, "epochs": self.config.epochs,
                         **evaluation.values})

    def finish(self) -> dict[str, Any]:
        """Evaluate the best weights on test, where there is one; write and return the summary."""
        position, tested = self.position, {}
        for name, when, is_nan in ((self.config.monitor_metric, "any", position.best_epoch < 0),
                                   ("val_loss", "the last", math.isnan(position.history[-1]["val_loss"]))):
            if is_nan:
                raise InputError(f"{name} is no number after {when} epoch: a smaller lr, more warm-up, max_grad_norm, fp32 or "
                                 "another monitor_metric may help")
        if "test" in self.data.splits:
            weights.load_model(self.trainer.model, self.checkpoints.folder / BEST)
            evaluation = self.evaluate("test")
            tested = evaluation.values
            self._publish(evaluation, self.config.epochs - 1)
        history = position.history
        summary = plain({
            "run": self.folder.name, "dataset": self.config.dataset, "labels": self.data.labels, "folder": str(self.folder),
            "monitor": self.config.monitor_metric, "best_value": position.best, "best_epoch": position.best_epoch,
            "epochs": len(history), "batches": position.batches, "optimizer_steps": position.steps,
            "train_s": sum(record["train_s"] for record in history), "history": history, "test": tested,
            "device": str(self.device), "finished_utc": store.utc_now()})
        if self.processes.first:
            store.write_json(summary, self.folder / SUMMARY)
        return summary


def _print_notes(config: TrainConfig, task: FinetuneTask, data: run_data.Data) -> None:
    measured = names(config.eval_topk, len(data.labels), task.multi_label)
    if dropped := [k for k in config.eval_topk if k > 1 and f"acc@{k}" not in measured]:
        print(f"eval_topk {choices(dropped)} left out: there are {len(data.labels)} classes"
              + (", and a sample may have several" if task.multi_label else ""))
    counts = [f"{len(indices):,} of {len(data.splits[split]):,} {split} samples" for split, indices in data.indices.items()]
    print(f"{data.note}\n{choices(counts)}; {len(data.labels)} classes", flush=True)


def train(config: TrainConfig, folder: Path, device: torch.device, threads: int = 0, together: Processes = ALONE,
          **hooks: Callable) -> dict[str, Any]:
    """Train a config in ``folder``, from the last state that was saved there, if any; return its summary.

    Hooks are ``check``, which is called after every batch and may raise to stop, and ``report``, which takes new values about
    twice a second. Raises InputError for a config that cannot be run, a NaN loss, and a full disk; earlier checkpoints stay.
    """
    with ExitStack() as stack:
        stack.enter_context(settings(device, threads or config.threads, config.deterministic))
        if together.first:
            stack.enter_context(locks.writer(files.folder(folder), _ORPHANS_S))
        if (folder / SUMMARY).exists():
            stored_config(folder, config)
            return store.read_json(folder / SUMMARY)
        run = Run(config, folder, device, together, **hooks)
        with run.recording():
            run.train()
            return run.finish()
