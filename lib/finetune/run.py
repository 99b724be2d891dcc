"""One run in its folder: trained from the beginning or from where it was cut short, evaluated, tested, and recorded."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lib import files, locks, store
from lib.config.definitions import Workload
from lib.errors import InputError, choices
from lib.finetune import data as run_data
from lib.finetune import networks, optimization
from lib.finetune.checkpoints import BEST, Checkpoints, Position
from lib.finetune.config import TrainConfig
from lib.finetune.devices import ALONE, Prefetched, Processes
from lib.finetune.metrics import Evaluation, Evaluator, check_monitor, names
from lib.finetune.tensorboard import Log
from lib.finetune.transforms import gpu_augmentation
from lib.measure import machine
from lib.measure.energy.meters import open_meter
from lib.measure.energy.windows import Recorder
from lib.measure.training.profile_run import settings
from lib.measure.training.profiled import PASSES
from lib.measure.training.profiler import BatchProfiler, constants
from lib.work import datasets, losses, weights
from lib.work.training import Batch, Observer, Options, Recipe, Trainer, seed_everything
from lib.work.workloads import Task

CONFIG, SUMMARY, PROFILE = "train_config.json", "summary.json", "profile.csv"
_LOSS = "val_loss"
_ORPHANS_S = 20.0  # that workers of a loader may outlive a run that was killed; they hold its lock
_KINDS = {split: kind for kind, split in PASSES.items()}  # what a pass over a split is called in a profile


@dataclass(frozen=True)
class FinetuneTask(Task):
    """A task whose model and loss are those of a config."""

    network: networks.Network
    labels: tuple[str, ...]
    loss_name: str

    def model(self) -> torch.nn.Module:
        """Build the model for the classes."""
        return self.network.build(self.labels)

    def loss(self) -> torch.nn.Module:
        """Return the config's loss."""
        return losses.build(self.loss_name, self.multi_label)


def _task(config: TrainConfig, folder: Path) -> tuple[FinetuneTask, run_data.Data]:
    """Resolve data and model; InputError for whatever of them is missing or does not fit."""
    names_there, facts = run_data.names_and_facts(config)
    network = networks.network(config, facts)
    data = run_data.open_data(config, network.inputs, names_there)
    facts = datasets.Facts(network.inputs.channels, len(data.labels), facts.spatial, facts.multi_label, facts.samples)
    workload = Workload.model_construct(id=folder.name, dataset=data.dataset, size=network.inputs.size, model=network.name,
                                        batch_size=config.batch_size)
    return FinetuneTask(workload, facts, network, data.labels, config.loss_name), data


def stored_config(folder: Path, config: TrainConfig) -> None:
    """Write ``train_config.json`` into a new folder; InputError where it holds a run of another config, and in which fields."""
    path = folder / CONFIG
    if not path.exists():
        store.write_json(config.content(), path)
    elif (before := store.read_json(path)) != config.content():
        stored = before if isinstance(before, dict) else {}
        differing = [name for name, value in config.content().items() if stored.get(name) != value]
        raise InputError(f"{folder} holds a run of another config (other: {choices(differing)}); name another folder")


class _Rows:
    """The profile of a run, ``profile.csv``; the rows after ``position`` are dropped, for their batches are done again."""

    def __init__(self, folder: Path, config: TrainConfig, task: FinetuneTask, data: run_data.Data, device: torch.device,
                 position: Position):
        path = folder / PROFILE
        lines = path.read_bytes().splitlines(keepends=True)[:1 + position.rows] if path.exists() else []
        if position.rows and len(lines) <= position.rows:
            raise InputError(f"{path} lacks rows: it has fewer than the {position.rows} of its checkpoint; name another folder")
        if path.exists():
            files.replace(path, b"".join(lines))
        else:
            store.write_meta(path, "profile", run_id=folder.name, started_utc=store.utc_now(), data_note=data.note,
                             parameters=config.content(), **machine.identity())
        self.file, self.count, self._device = store.Appender(path, "profile", resume=True), position.rows, device
        self._constants = {split: constants(folder.name, task.workload, kind, device, config.num_workers, config.precision,
                                            data.data_source) for split, kind in _KINDS.items()}

    def observer(self, split: str, epoch: int, step: int, recorder: Recorder | None = None) -> BatchProfiler:
        """Return what writes the rows of a pass."""
        observer = BatchProfiler(self.file, self._constants[split], self._device, recorder=recorder, step=step)
        observer.epoch = epoch
        return observer


class _Watch:
    """Observes an epoch: its rows, its log, its sums, and checkpoints between its steps."""

    def __init__(self, run: "Run", rows: Observer):
        self._run, self._rows, self._reported = run, rows, run.log and run.log.latest
        self._since = time.perf_counter()
        self._waiting: list[tuple[torch.Tensor, torch.Tensor, int]] = []  # losses, right samples, samples that are not summed
        self.start, self.mark = rows.start, rows.mark

    def end(self, batch: Batch) -> None:
        """Take note of a batch; raises what the log does where its loss is no number, and what the run's ``check`` does."""
        self._rows.end(batch)
        run, position, size = self._run, self._run.position, self._run.batches.own(batch.index)
        loss, right = batch.loss.detach(), _right(batch.logits.detach(), batch.targets)
        self._waiting.append((loss, right, size))
        position.batch, position.batches, position.samples = position.batch + 1, position.batches + 1, position.samples + size
        position.rows += isinstance(self._rows, BatchProfiler)
        position.steps += batch.stepped
        if run.log:
            run.log.step(position.batches - 1, position.epoch, loss, right, size, batch.lr)
            if run.log.latest is not self._reported:
                latest = self._reported = run.log.latest
                run.report({**latest, "epochs": run.config.epochs, "loss": latest["step_loss"]})
        if batch.stepped and run.checkpoints.due(position.steps):
            self.save()
        run.check()

    def save(self) -> None:
        """Save the state, once it is known that all losses so far are numbers."""
        position, now = self._run.position, time.perf_counter()
        position.seconds, self._since = position.seconds + now - self._since, now
        if self._run.log:
            self._run.log.flush()
        self.sum_up()
        self._run.checkpoints.save(self._run.trainer, position)
        self._since = time.perf_counter()

    def sum_up(self) -> None:
        """Add the batches since the last time to the position's sums, in their order; waits for the device."""
        if self._waiting:
            position, (losses, right, samples) = self._run.position, zip(*self._waiting, strict=True)
            for loss, correct, size in zip(torch.stack(losses).tolist(), torch.stack(right).tolist(), samples, strict=True):
                position.loss, position.right = position.loss + loss * size, position.right + correct * min(size, 1)
            self._waiting.clear()


def _right(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return how many samples of a batch are right; of several labels, the share of each sample's."""
    if targets.ndim == 1:
        return (logits.argmax(1) == targets).sum()
    return ((logits > 0) == (targets > 0.5)).to(_exact(logits.device)).mean(1).sum()


def _exact(device: torch.device) -> torch.dtype:
    """Return what sums are kept in: MPS has no double."""
    return torch.float if device.type == "mps" else torch.double


@dataclass
class Run:
    """The parts of a run while it is trained."""

    config: TrainConfig
    folder: Path
    task: FinetuneTask
    data: run_data.Data
    device: torch.device
    processes: Processes
    trainer: Trainer
    batches: run_data.Batches
    checkpoints: Checkpoints
    position: Position
    check: Callable[[], None]
    report: Callable[[dict[str, Any]], None]
    log: Log | None = None
    rows: _Rows | None = None

    def loader(self, split: str, batches: run_data.Batches):
        """Return the loader of a split, its batches on the device where that is a GPU."""
        on_gpu = self.device.type == "cuda"
        loader = run_data.loader(self.config, self.data.splits[split], batches, pin=on_gpu)
        return Prefetched(loader, self.device) if on_gpu else loader

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Open the log and the profile, which the first process writes, and close them."""
        if not self.processes.first:
            yield
            return
        with ExitStack() as stack:
            self.log = Log(self.folder, self.position.batches, self.config.folders(self.folder)[0])
            stack.callback(self.log.close)
            if self.config.profile:
                self.rows = _Rows(self.folder, self.config, self.task, self.data, self.device, self.position)
                stack.callback(self.rows.file.close)
            yield

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
        """Train what is left of an epoch; return what is known of all of it."""
        position, whole = self.position, self.position.batch == 0
        self.batches.begin(position.epoch, position.batch)
        with Recorder(open_meter(str(self.device))) as recorder:
            rows = self.rows.observer("train", position.epoch, position.batches, recorder) if self.rows else Observer()
            watch, begin = _Watch(self, rows), time.perf_counter()
            self.trainer.train(loader, watch, position.batch)
            watch.sum_up()
            end = time.perf_counter()
        position.seconds += end - watch._since
        if self.log:
            self.log.pause()
        metered = self.device.type == "cuda" or self.processes.local_rank == 0  # a meter a card, or one a machine's CPU
        energy_j = (recorder.energy(begin, end).energy_j if metered else 0.0) if whole else math.nan
        sums = torch.tensor(self.processes.gathered((position.loss, position.right, position.samples, energy_j)),
                            dtype=torch.double)
        loss, right, samples, energy_j = sums.sum(0).tolist()
        return {"epoch": position.epoch, "step": position.batches - 1, "train_loss": loss / samples,
                "train_acc@1": right / samples, "lr": self.trainer.optimizer.param_groups[0]["lr"],
                "train_s": position.seconds, "images_per_sec": samples / position.seconds,
                "energy_j": energy_j}

    def evaluate(self, split: str) -> Evaluation:
        """Evaluate a split, each process its share; every process has to call this."""
        self.processes.share_statistics(self.trainer.model)
        samples = self.data.indices[split][self.processes.rank::self.processes.count]
        evaluator = Evaluator(split, len(self.data.labels), self.task.multi_label, self.config.eval_topk, self.device)
        batches = run_data.Batches(samples, math.ceil(self.config.batch_size / self.processes.count))
        step = self.position.epoch * batches.batches if split == "val" else 0
        observer = self.rows.observer(split, -1, step) if self.rows else Observer()
        for loss, scores, targets in self.trainer.predict(self.loader(split, batches), observer):
            evaluator.update(scores, targets, loss)
            self.position.rows += self.rows is not None
            self.check()
        return evaluator.compute()

    def _record(self, record: dict[str, float], evaluation: Evaluation) -> None:
        """Log an epoch, write its evaluation, report it, and print a line."""
        if not self.log:
            return
        position, step = self.position, record["step"]
        shown = {"train/epoch_loss": record["train_loss"], "train/epoch_acc@1": record["train_acc@1"],
                 f"best/{self.config.monitor_metric}": position.best, "energy/epoch_j": record["energy_j"],
                 "throughput/epoch_images_per_sec": record["images_per_sec"]}
        self.log.scalars({name: value for name, value in shown.items() if not math.isnan(value)}, step, position.epoch)
        self.log.evaluation(evaluation, step, position.epoch, self.data.labels)
        self.log.flush()
        evaluation.write(self.folder)
        self.report({"split": "val", "step": step, "epoch": position.epoch, "epochs": self.config.epochs, **evaluation.values})
        name = self.config.monitor_metric
        print(f"epoch {position.epoch + 1}/{self.config.epochs}: train loss {record['train_loss']:.4f}, {name} "
              f"{evaluation.values[name]:.4f} (best {position.best:.4f}), {record['images_per_sec']:,.0f} images/s", flush=True)

    def finish(self) -> dict[str, Any]:
        """Evaluate the best weights on test, where there is one; write and return the summary."""
        position, tested = self.position, {}
        if position.best_epoch < 0 or math.isnan(position.history[-1][_LOSS]):
            name = self.config.monitor_metric if position.best_epoch < 0 else _LOSS
            raise InputError(f"{name} is no number after {'any' if position.best_epoch < 0 else 'the last'} epoch: a smaller "
                             "lr, more warm-up, max_grad_norm, fp32 or another monitor_metric may help")
        if "test" in self.data.splits:
            weights.load_model(self.trainer.model, self.checkpoints.folder / BEST)
            evaluation = self.evaluate("test")
            tested = evaluation.values
            if self.log:
                self.log.evaluation(evaluation, position.batches - 1, self.config.epochs - 1, self.data.labels)
                evaluation.write(self.folder)
                self.report({"split": "test", "step": position.batches - 1, "epoch": self.config.epochs - 1, **tested})
        history = position.history
        summary = {"run": self.folder.name, "dataset": self.data.dataset, "labels": list(self.data.labels),
                   "folder": str(self.folder), "monitor": self.config.monitor_metric, "best_value": position.best,
                   "best_epoch": position.best_epoch,
                   "epochs": len(history), "batches": position.batches, "optimizer_steps": position.steps,
                   "train_s": sum(record["train_s"] for record in history), "history": history, "test": tested,
                   "device": str(self.device), "finished_utc": store.utc_now()}
        if self.processes.first:
            store.write_json(plain(summary), self.folder / SUMMARY)
        return plain(summary)


def plain(value: Any) -> Any:
    """Return a value as JSON has it: numbers that are none become null."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _prepared(config: TrainConfig, folder: Path, device: torch.device, together: Processes, check: Callable[[], None],
              report: Callable[[dict[str, Any]], None]) -> Run:
    """Make all parts of a run; put them into the last state that was saved, if there is one."""
    task, data = _task(config, folder)
    check_monitor(config.monitor_metric, config.eval_topk, len(data.labels), task.multi_label)
    if together.first:
        stored_config(folder, config)
        _say_notes(config, task, data)
    batches = run_data.Batches(data.indices["train"], config.batch_size, config.grad_accum_steps, config.seed, together)
    steps = math.ceil(batches.batches / config.grad_accum_steps) * config.epochs
    seed_everything(config.seed)
    recipe = Recipe(lambda model: optimization.optimizer(config, model),
                    lambda stepped: optimization.schedule(config, stepped, steps), config.max_grad_norm,
                    gpu_augmentation() if config.gpu_batch_aug else None, batches.weight,
                    together.parallel if together.count > 1 else None)
    options = Options(device, config.precision, config.lr, config.channels_last, config.grad_accum_steps, device.type == "cuda")
    trainer = Trainer(task, options, recipe)
    seed_everything(config.seed + together.rank)
    checkpoints = Checkpoints(config.folders(folder)[1], config, together)
    return Run(config, folder, task, data, device, together, trainer, batches, checkpoints, checkpoints.resume(trainer), check,
               lambda values: report(plain(values)))


def _say_notes(config: TrainConfig, task: FinetuneTask, data: run_data.Data) -> None:
    """Print what a reader of the run's log should know of its data."""
    measured = names(config.eval_topk, len(data.labels), task.multi_label)
    if dropped := [k for k in config.eval_topk if k > 1 and f"acc@{k}" not in measured]:
        print(f"eval_topk {choices(dropped)} left out: there are {len(data.labels)} classes"
              + (", and a sample may have several" if task.multi_label else ""))
    kept = choices(f"{len(kept):,} of {len(data.splits[split]):,} {split} samples" for split, kept in data.indices.items())
    print(f"{data.note}\n{kept}; {len(data.labels)} classes", flush=True)


def train(config: TrainConfig, folder: Path, device: torch.device, threads: int = 0, check: Callable[[], None] = lambda: None,
          report: Callable[[dict[str, Any]], None] = lambda values: None, together: Processes = ALONE) -> dict[str, Any]:
    """Train a config in ``folder``, from the last state that was saved there, if any; return its summary.

    ``check`` is called after every batch and may raise to stop; ``report`` is given what is newly known, some twice a second.
    Raises InputError for whatever cannot be run, a loss that is no number, and a full disk; what was saved before stays.
    """
    with ExitStack() as stack:
        stack.enter_context(settings(device, threads or config.threads, config.deterministic))
        if together.first:
            stack.enter_context(locks.writer(files.folder(folder), _ORPHANS_S))
        if (folder / SUMMARY).exists():
            stored_config(folder, config)
            return store.read_json(folder / SUMMARY)
        run = _prepared(config, folder, device, together, check, report)
        with run.recording():
            run.train()
            return run.finish()
