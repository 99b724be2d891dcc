"""What a profiled step says of fetching, pinning and streams, against the record that torch's own profiler keeps."""

import json
import time

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from lib import store
from lib.config import definitions
from lib.finetune.data import Prefetched
from lib.measure.training.profiler import constants, profiler
from lib.work import workloads
from lib.work.training import Options, Trainer, seed_everything

BATCH, BATCHES, FETCH_S = 64, 6, 0.004


class Slow(torch.utils.data.Dataset):
    """Images of W1 whose first one in a batch takes a moment to come."""

    def __len__(self):
        return BATCH * BATCHES

    def __getitem__(self, index):
        if index % BATCH == 0:
            time.sleep(FETCH_S)
        return torch.full((3, 28, 28), index / len(self)), torch.tensor([index % 9])


def recorded(tmp_path, device, pin=False, wrap=lambda loader: loader):
    """Train one epoch under both profilers; return our rows and the events of torch's."""
    seed_everything(0)
    task = workloads.prepare(definitions.workload("W1"), BATCH)
    trainer = Trainer(task, Options(device, pin_memory=pin))
    loader = torch.utils.data.DataLoader(Slow(), batch_size=BATCH, pin_memory=pin)
    trainer.train(loader)  # libraries, kernels and the allocator are there
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    facts = constants("run", task.workload, "train", device, 0, "fp32", "synthetic")
    with profile(activities=activities) as trace, profiler(tmp_path / "rows.csv", facts, device) as observer:
        trainer.train(wrap(loader), observer)
    trace.export_chrome_trace(str(tmp_path / "trace.json"))
    return store.read(tmp_path / "rows.csv", "profile"), json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def milliseconds(events, category, word=""):
    return [event["dur"] / 1e3 for event in events if event.get("cat") == category and word in event["name"]]


def hold(measured_ms, recorded_ms, more_ms):
    """Hold that each time covers what the profiler recorded, and the least disturbed little more."""
    differences = measured_ms.to_numpy() - np.array(recorded_ms)
    assert (differences >= -0.02 * np.array(recorded_ms) - 0.05).all()
    assert differences.min() < more_ms


@pytest.mark.slow
def test_the_phases_of_a_step_are_what_the_profiler_sees_of_them(tmp_path):
    rows, events = recorded(tmp_path, torch.device("cpu"))
    fetched = milliseconds(events, "user_annotation", "enumerate(DataLoader)")[:BATCHES]  # the last finds it empty
    assert min(fetched) >= FETCH_S * 1e3
    hold(rows["loader_wait_ms"], fetched, 2.0)
    hold(rows["optimizer_ms"], milliseconds(events, "user_annotation", "Optimizer.step"), 2.0)
    backward = sum(milliseconds(events, "cpu_op", "autograd::engine::evaluate_function: ConvolutionBackward0"))
    assert rows["backward_time_ms"].sum() > backward > 0, "the backward pass lies in its phase"


def of_the_gpu(events, category):
    return sorted((event for event in events if event.get("cat") == category), key=lambda event: event["ts"])


def images(events):
    return [event for event in of_the_gpu(events, "gpu_memcpy") if event["args"]["bytes"] >= BATCH * 3 * 28 * 28 * 4]


def streams(events):
    return {event["args"]["stream"] for event in events}


@pytest.mark.cuda
@pytest.mark.parametrize("pin", [True, False])
def test_copies_to_a_gpu_are_pinned_where_asked_and_take_what_the_profiler_says(tmp_path, pin):
    rows, events = recorded(tmp_path, torch.device("cuda:0"), pin)
    copies = images(events)
    assert [("Pinned" in event["name"]) for event in copies] == [pin] * BATCHES, "images come as they were asked to"
    for ours, copy in zip(rows["h2d_ms"], copies, strict=True):
        assert 0.9 * copy["dur"] / 1e3 <= ours <= copy["dur"] / 1e3 + 2.0
    compute = of_the_gpu(events, "kernel")
    assert streams(copies) == streams(compute)
    kernels_ms, phases = sum(event["dur"] for event in compute) / 1e3, ["forward_time_ms", "backward_time_ms", "optimizer_ms"]
    assert rows[phases].sum().sum() >= 0.9 * kernels_ms, "device events cover the kernels"
    assert (rows["step_time_ms"] >= 0.98 * rows[phases].sum(axis=1)).all()


@pytest.mark.cuda
def test_prefetched_copies_run_beside_the_kernels_and_before_those_of_their_batch(tmp_path):
    device = torch.device("cuda:0")
    _, events = recorded(tmp_path, device, True, lambda loader: Prefetched(loader, device))
    copies, compute = images(events), of_the_gpu(events, "kernel")
    assert len(copies) == BATCHES and all("Pinned" in event["name"] for event in copies)
    assert streams(copies).isdisjoint(streams(compute))
    convolutions = [event for event in compute if "conv" in event["name"].lower() or "implicit" in event["name"].lower()]
    for number, copy in enumerate(copies):
        done = sum(event["ts"] < copy["ts"] + copy["dur"] for event in convolutions)
        assert done <= number * len(convolutions) / BATCHES, "no convolution of a batch begins before its images are there"
