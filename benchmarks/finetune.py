"""A fine-tune's loop beside a bare PyTorch loop and Hugging Face's Trainer: same model and data, epochs taken in turn."""

import contextlib
import dataclasses
import io
import random
import statistics as plain
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch

from lib.finetune import optimization, train
from lib.finetune.config import TrainConfig
from lib.measure import statistics
from lib.work import distributed

ROUNDS, SAMPLES = 60, 100  # rounds of one epoch each, samples a class
TOY = {"ROUNDS": 1, "SAMPLES": 8}
CPU = torch.device("cpu")


class Decoded(torch.utils.data.Dataset):
    """Samples held as tensors: what is compared is the loop, not the decoding."""

    def __init__(self, samples, indices):
        self.kept = {index: samples[index] for index in indices}

    def __len__(self):
        return len(self.kept)

    def __getitem__(self, index):
        return self.kept[index]


class Named(torch.utils.data.Dataset):
    """The same samples as Trainer takes them."""

    def __init__(self, decoded):
        self.samples = list(decoded.kept.values())

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        inputs, label = self.samples[index]
        return {"pixel_values": inputs, "labels": int(label[0])}


class Ours:
    """The loop of a run with all that it does in an epoch: log, sums, accuracy, checkpoints when due; ``profile``: rows too."""

    def __init__(self, config, home, stack, profile):
        config = config.model_copy(update={"profile": profile})
        self.run = train.Run(config, home / f"profile_{profile}", CPU, distributed.accelerator("cpu", config.seed))
        decoded = Decoded(self.run.data.splits["train"], self.run.data.indices["train"])
        self.run.data = dataclasses.replace(self.run.data, splits={**self.run.data.splits, "train": decoded})
        self.run.loader = self.run._loader("train")
        self.run.open_records(stack)

    def epoch(self) -> float:
        """Train one epoch; return its seconds."""
        begin = time.perf_counter()
        self.run._train_epoch()
        seconds = time.perf_counter() - begin
        self.run.progress.epoch, self.run.progress.batch = self.run.progress.epoch + 1, 0
        return seconds


class Bare:
    """What one writes by hand: forward, backward, clipping, optimizer, schedule; the loss is read once an epoch."""

    def __init__(self, config, ours, steps):
        torch.manual_seed(config.seed)
        self.model, self.config, self.number = ours.run.task.model(), config, 0
        self.model.load_state_dict(ours.run.trainer.model.state_dict())
        self.optimizer = optimization.optimizer(config, self.model)
        self.schedule = optimization.schedule(config, self.optimizer, steps)
        self.loader = ours.run._loader("train")
        self.loss = torch.nn.CrossEntropyLoss()

    def epoch(self) -> float:
        """Train one epoch; return its seconds."""
        begin, total = time.perf_counter(), torch.zeros(())
        self.loader.set_epoch(self.number)
        self.model.train()
        for inputs, labels in self.loader:
            loss = self.loss(self.model(inputs).logits, labels.reshape(-1))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.max_grad_norm)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self.schedule.step()
            total += loss.detach() * len(inputs)
        float(total)
        self.number += 1
        return time.perf_counter() - begin


class Peer:
    """Hugging Face's Trainer in a thread of its own, which goes on by one epoch at a time; its set-up is not timed."""

    def __init__(self, config, ours, home, rounds):
        from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

        peer, self.turn, self.done, self.seconds = self, threading.Event(), threading.Event(), 0.0

        class Turns(TrainerCallback):
            def on_epoch_begin(self, *_, **__):
                peer.turn.wait()
                peer.turn.clear()
                peer.begin = time.perf_counter()

            def on_epoch_end(self, *_, **__):
                peer.seconds = time.perf_counter() - peer.begin
                peer.done.set()

        model = ours.run.task.model()
        model.load_state_dict(ours.run.trainer.model.state_dict())
        arguments = TrainingArguments(
            str(home / "peer"), num_train_epochs=rounds, per_device_train_batch_size=config.batch_size, learning_rate=config.lr,
            weight_decay=config.weight_decay, max_grad_norm=config.max_grad_norm, lr_scheduler_type="cosine",
            warmup_steps=0, optim="adamw_torch", save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True,
            dataloader_pin_memory=False, remove_unused_columns=False, logging_strategy="no", seed=config.seed)
        self.trainer = Trainer(model, arguments, train_dataset=Named(ours.run.data.splits["train"]), callbacks=[Turns()])
        self.trainer.remove_callback(PrinterCallback)
        self.thread = threading.Thread(target=self._train, daemon=True)
        self.thread.start()

    def _train(self) -> None:
        try:
            self.trainer.train()
        finally:
            self.done.set()

    def epoch(self) -> float:
        """Let it train one epoch; return its seconds."""
        self.turn.set()
        self.done.wait()
        self.done.clear()
        return self.seconds


def main() -> None:
    """Print the median step of each, and the ratios of epochs of the same round with their intervals."""
    config = TrainConfig(root="synthetic:pathmnist", model_flavour="params/tiny_vit", loss_name="cross_entropy", batch_size=64,
                         load_pretrained=False, num_workers=0, epochs=ROUNDS + 1, optimizer="adamw", warmup_ratio=0.0,
                         autocast_dtype="fp32", max_datapoints_per_class=SAMPLES, mlflow=False)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        home = Path(folder)
        with contextlib.redirect_stdout(io.StringIO()):
            ours = Ours(config, home, stack, profile=False)
            profiled = Ours(config, home, stack, profile=True)
        batches = len(ours.run.loader)
        contenders = {"bare PyTorch": Bare(config, ours, (ROUNDS + 1) * batches), "fine-tune": ours,
                      "fine-tune, profiled": profiled, "Hugging Face Trainer": Peer(config, ours, home, ROUNDS + 1)}
        seconds = {name: [one.epoch()] for name, one in contenders.items()}  # warm-up, left out
        order = random.Random(0)
        for _ in range(ROUNDS):
            for name in order.sample(sorted(contenders), len(contenders)):
                seconds[name].append(contenders[name].epoch())
        contenders["Hugging Face Trainer"].thread.join()
        bare = contenders["bare PyTorch"].model.state_dict()
        same = all(torch.equal(value, bare[name]) for name, value in ours.run.trainer.model.state_dict().items())
    taken = {name: np.array(values[1:]) for name, values in seconds.items()}
    for name, values in taken.items():
        print(f"   {name}: {plain.median(values) / batches * 1e3:.2f} ms a step, {ROUNDS} epochs of {batches} steps")
    for name, other in (("fine-tune", "bare PyTorch"), ("fine-tune, profiled", "bare PyTorch"),
                        ("Hugging Face Trainer", "bare PyTorch"), ("fine-tune", "Hugging Face Trainer")):
        ratios = taken[name] / taken[other]
        low, high = statistics.bootstrap(ratios)
        print(f"   {name} / {other}: {np.median(ratios):.4f} [{low:.4f}, {high:.4f}] at 95 %, {ROUNDS} rounds")
    print(f"   weights of the fine-tune and of the bare loop after all rounds: {'equal, bit for bit' if same else 'DIFFERENT'}")
