"""The verbs ``advise``, ``advise-op``, ``calibrate`` and ``models``. Imports nothing heavy."""

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lib import paths
from lib.cli.options import a_path, add_verb, flag, new_file, note, number, option, whole
from lib.errors import InputError, choices
from lib.names import known
from lib.work.runtimes import RUNTIMES, TORCH

_BUDGET_S = 120.0  # of calibrate
_PATIENCE_S = 2.0  # for a quiet machine, before its ceilings are measured


def _with_ceilings(options: argparse.Namespace, ask: Callable[[], Any], dtype: str = "fp32") -> Any:
    """Return the answer; if this CPU uses another CPU's model, measure its ceilings first.

    On a busy machine they are not measured, and the answer is not scaled.
    """
    import torch

    from lib import locks
    from lib.measure import disturbance
    from lib.measure.statistics import STABLE
    from lib.predict import registry, transfer_cpu

    answer, has_cpu = ask(), not options.device or "cpu" in options.device
    cpu = registry.predictor("cpu", dtype) if has_cpu and not options.no_ceilings else None
    if cpu is None or not cpu.is_unscaled:
        return answer
    threads = torch.get_num_threads()
    beside = disturbance.wait_for_quiet(threads, _PATIENCE_S)
    if beside.verdict(threads) != STABLE:
        note("the ceilings of this CPU are not measured now, and the answer is not scaled to it: "
             f"{beside.words()}")
        return answer
    note("no model of this CPU: measuring its ceilings first (10 s, once; skip with "
         "--no-ceilings)")
    try:
        transfer_cpu.measure_ceilings(wait_s=0.0)
    except locks.HeldError as error:
        note(f"not measured now, the answer is not scaled to this machine: {error}")
        return answer
    return ask()


def _as_json(rows: list) -> str:
    from lib.predict.advice import advise_text

    return json.dumps(advise_text.plain(rows), indent=1, allow_nan=False)


def _run_config(options: argparse.Namespace) -> Any:
    from lib.work.run_config import RunConfig

    return RunConfig(
        options.model, batch_size=options.batch_size, mode=options.mode, dtype=options.dtype,
        layout="channels_last" if options.channels_last else "contiguous", gpus=options.gpus,
        runtime=options.runtime, threads=options.threads, instances=options.instances,
        input_shape=options.input_size, compiled=options.compile,
        autocast=not options.no_autocast)


def _device_condition(options: argparse.Namespace) -> Any:
    from lib.work.run_config import DeviceCondition

    return DeviceCondition(power_limit_w=options.power_limit, clock_mhz=options.clock_mhz,
                           host_us=options.host_us)


def _advise(options: argparse.Namespace) -> bool:
    if options.questions:
        return _answer_questions(options)
    if not options.model:
        raise InputError("advise takes a network, or --questions FILE.csv and --output")
    if options.output:
        raise InputError("--output is of --questions; an answer about one network is printed")
    from lib.measure import disturbance
    from lib.measure.reference_kernel import kernel_now
    from lib.predict.advice import advise, advise_text, snippets, suggestions

    if options.code:
        print(snippets.snippet(_run_config(options)))
        return False
    in_full = not options.json and (options.explain or options.verify)

    def ask() -> advise.Advice:
        return advise.advise(_run_config(options), options.device, _device_condition(options))

    watch = disturbance.LoadWatch()
    advice = _with_ceilings(options, ask)
    free_cores = disturbance.cores_left(watch.reading())
    kernel = None
    if advise_text.usual_speed(advice) and not options.no_ceilings:
        kernel = kernel_now()
    cpu_load, measured = advise_text.cpu_load_note(advice, free_cores, kernel), None
    if in_full:
        print(advise_text.text(advice), *filter(None, [cpu_load]), sep="\n", flush=True)
    changes = suggestions.suggestions(advice) if options.verify or not options.json else []
    if options.verify:  # output of users' code goes to stderr
        measured = suggestions.verified(advice, changes)
    if options.json:
        print(_as_json(advise_text.records(advice, measured, cpu_load, kernel)))
    elif not in_full:
        print(advise_text.screen(advice, changes, cpu_load))
    else:
        if measured:
            measured_ms, changes = measured
            print(advise_text.verdict(advice, measured_ms))
        print(advise_text.changes(changes))
    return False


def _answer_questions(options: argparse.Namespace) -> bool:
    """Answer a file of questions; return whether none of them has an answer."""
    from lib import files
    from lib.predict.advice import questions

    if options.model or options.verify:
        raise InputError("--questions is asked without a network and without --verify: each row "
                         "names its own")
    rows = questions.read(options.questions, _run_config(options), options.device)
    options.device = []
    if all(question.device for question in rows):
        options.device = sorted({question.device for question in rows})
    condition = _device_condition(options)
    table = _with_ceilings(options, lambda: questions.answer(rows, condition=condition))
    note(questions.summary(table))
    if options.output:
        print(files.create(options.output, table.to_csv(index=False).encode()))
    elif options.json:
        print(_as_json(table.to_dict("records")))
    else:
        print(table.to_csv(index=False), end="")
    return (table["error"] != "").all()


def _advise_operator(options: argparse.Namespace) -> None:
    from lib.predict.advice import advise_operator

    config = advise_operator.config(options.op, options.parameters, options.dtype, options.passes)
    table = _with_ceilings(options, lambda: advise_operator.advise(config, options.device),
                           options.dtype)
    if not options.json:
        print(advise_operator.text(config, table))
        return
    print(_as_json(table.to_dict("records")))
    for device, why in table.attrs["left_out"].items():
        note(f"left out: {device}: {why}")


def _calibrate(options: argparse.Namespace) -> None:
    from lib.config.definitions import load_devices
    from lib.predict import registry

    if not options.networks:
        from lib.predict import calibrate

        if registry.device_id(options.device) != "cpu":
            raise InputError(f"calibrate measures this machine's cpu; a GPU such as {options.device} "
                             "is corrected by networks measured on it: give their files by "
                             "--networks")
        print(calibrate.summary(calibrate.calibrate(options.dtype or "fp32",
                                                    options.budget_s or _BUDGET_S)))
        return
    from lib.predict.gpu_training import calibration

    given = {"--dtype": options.dtype, "--budget-s": options.budget_s}
    if unused := [name for name, value in given.items() if value is not None]:
        raise InputError("--networks measures nothing, in no element type of its own: leave out "
                         f"{choices(unused)}")
    device = registry.device_id(options.device)
    if device not in load_devices():
        raise InputError(f"--networks corrects the model of a GPU, which {device} is not; name one "
                         "by --device: cuda:0 or an id of params/devices.yaml")
    print(calibration.summary(calibration.calibrate(device, options.networks)))


def _models(options: argparse.Namespace) -> bool:
    """List the models at hand or their errors, or train those that ship."""
    from lib.predict.evaluation import models_at_hand
    from lib.predict.trust import errors

    if options.outsiders:
        return _outsiders(options)
    if options.errors:
        rows = errors.table()
        _print(errors.weakest_first(rows) if options.all else errors.graded(rows), na_rep="-")
        if not options.all:
            print("Of what no model saw. --all: by device, kind, mode and condition.")
        return False
    if options.train:
        for text in _trained(options.train, options.source, options.labels):
            print(text)
    if options.train == "profiles":
        return False
    table = models_at_hand.summary()
    _print(table)
    return (table["part"] == models_at_hand.UNUSABLE).any()


def _outsiders(options: argparse.Namespace) -> bool:
    """Score what ships on labels of others; save the predictions if asked to."""
    from lib.predict.evaluation import outsiders
    from lib.predict.trust import scoreboard

    rows = outsiders.ship(*options.outsiders) if options.ship else outsiders.predicted(*options.outsiders)
    if rows.empty:
        print("no label could be predicted")
    elif options.all:
        _print(scoreboard.scoreboard(rows), na_rep="-")
    elif (board := scoreboard.summary(rows)).empty:
        print(f"only kernels under {scoreboard.SMALL_MS} ms: see --all")
    else:
        _print(board, na_rep="-")
    for reason, count in rows.attrs["left_out"].items():
        note(f"left out: {count:,} of {reason}")
    return rows.empty


def _print(table: Any, **how: str) -> None:
    print(_shown(table, **how))


def _shown(table: Any, digits: int = 1, **how: str) -> str:
    return table.to_string(index=False, float_format=f"{{:.{digits}f}}".format, **how)


def _trained(kind: str, source: str, folder: Path) -> Iterator[str]:
    """Train models; yield what to print of each."""
    from lib.predict import gain_training, runtime_training
    from lib.predict.evaluation import evaluate, power, power_limits, profiled_steps

    if kind == "profiles":
        for path in profiled_steps.learn_all(source):
            scores = profiled_steps.scores(profiled_steps.published(path, source))
            yield f"{path}\n{_shown(scores)}\n"
    elif kind == "cpu":
        yield evaluate.evaluate().to_string(index=False)
    elif kind == "gpu":
        from lib.predict.gpu_training import training

        cases, final, reasons = training.gathered(folder)
        yield _shown(training.summary(training.ship(cases, final)), 2)
        yield from (f"left out: {name}: {reason}" for name, reason in reasons.items())
    elif kind == "power":
        rows = power.read(folder)
        yield _shown(power.ship(rows))
        yield _shown(power_limits.ship(folder, rows))
    elif kind in ("gains", "runtimes"):
        yield _shown((gain_training if kind == "gains" else runtime_training).ship())
    elif kind in ("neusight", "aiconfigurator"):
        evaluate.published(kind, "bf16" if kind == "aiconfigurator" else "fp32")
    else:
        scores, reasons = evaluate.own_machine(kind)
        yield scores.to_string(index=False)
        yield from (f"left out: {reason}" for reason in reasons)


def add(verbs) -> None:
    """Add the verbs."""
    _add_advise(verbs)
    verb = add_verb(verbs, "advise-op", "how long one operator takes on each device, at what "
                    "bandwidth and rate, and why", _advise_operator)
    option(verb, "op", "a family, such as conv2d, linear, attention; an unknown one lists all")
    option(verb, "parameters", "batch=8 in_channels=64 height=56 ...; a wrong name lists those of "
           "the family", nargs="*", metavar="NAME=VALUE")
    option(verb, "--pass", "direction of the pass", default="forward", dest="passes",
           choices=("forward", "backward"))
    _add_devices(verb)
    _add_models(verbs)
    verb = add_verb(verbs, "calibrate", "correct the nearest model by a few points measured on "
                    "this CPU, or a card's by networks measured on it", _calibrate)
    option(verb, "--device", "cpu, or of --networks cuda:0 or one of params/devices.yaml",
           default="cpu")
    option(verb, "--networks", "measure nothing: correct a card's model by ten or more networks "
           "measured on it, benchmark-*.csv of timm or networks.parquet; may be given again",
           a_path, action="append", metavar="FILE")
    option(verb, "--budget-s", f"time for measuring (default: {_BUDGET_S:g})", number(10, 1e6))
    option(verb, "--dtype", "default: fp32", choices=("fp32", "bf16", "fp16"))


def _add_advise(verbs) -> None:
    verb = add_verb(verbs, "advise", "where a network should run, how long it takes there, and "
                    "what to change", _advise)
    option(verb, "model", "a torchvision name, a workload id (W1), timm:NAME, hf:PATH (a folder "
           "with a config.json), or module:Class", default="", nargs="?")
    option(verb, "--questions", "answer a table: a column model, and any of batch_size, device, "
           "mode, dtype, input, layout, ...; options fill gaps", a_path, metavar="FILE.csv")
    option(verb, "--output", "of --questions: the answers", new_file, metavar="FILE.csv")
    option(verb, "--input-size", "one sample: 3x224x224, tokens 512:int64, or a YAML file of "
           "several by their arguments' names", default="", metavar="SHAPE")
    option(verb, "--batch-size", "of all GPUs (default: the workload's, or 1 each)", whole(1), 0)
    option(verb, "--gpus", "equal GPUs of one machine that share the batch "
           "(DistributedDataParallel)", whole(1), 1)
    option(verb, "--mode", "a forward pass, or a training step", default="infer",
           choices=("infer", "train"))
    flag(verb, "--channels-last", "memory layout of images, of cards and of this CPU")
    flag(verb, "--compile", "compiled by torch.compile")
    option(verb, "--runtime", "of this CPU", default=TORCH, choices=tuple(RUNTIMES))
    option(verb, "--threads", "per process on this CPU (default: all cores)", whole(0), 0)
    option(verb, "--instances", "processes side by side on this CPU", whole(1), 1)
    flag(verb, "--code", "print a program that runs the network so, to paste and run")
    option(verb, "--power-limit", "a lowered power limit of GPUs (default: the board's)",
           number(0, 1e4, above=True), 0.0, metavar="W")
    option(verb, "--host-us", "what your host takes to launch an operator on a GPU (default: a usual "
           "host's)", number(0, 1e4, above=True), 0.0, metavar="US")
    flag(verb, "--no-autocast", "bf16 or fp16 as a whole network, on GPUs")
    option(verb, "--clock-mhz", "the clock at which GPUs are locked (default: the boost clock)",
           whole(1), 0, metavar="MHZ")
    flag(verb, "--explain", "print all: origins, held-out errors, price, energy")
    flag(verb, "--verify", "measure the prediction and the changes on this machine's CPU")
    _add_devices(verb)


def _add_devices(verb: argparse.ArgumentParser) -> None:
    """Add the options of an answer on several devices."""
    option(verb, "--dtype", "fp32: TF32 in convolutions of GPUs alone; tf32: in "
           "matrix products, too; int8: on this CPU, quantised", default="fp32",
           choices=("fp32", "tf32", "bf16", "fp16", "int8"))
    option(verb, "--device", "a device (cuda:0: this machine's), or a reference machine (NAME, or "
           "cpu@NAME); may be given again (default: all with a model)",
           lambda text: known(text, ["cpu"]), [], action="append")
    flag(verb, "--no-ceilings", "measure neither this CPU's ceilings (10 s, once) nor its speed")
    flag(verb, "--json", "print a list of objects, one per device")


def _add_models(verbs) -> None:
    verb = add_verb(verbs, "models", "the registry: every cost model with its scores; or train "
                    "those that ship", _models)
    group = verb.add_mutually_exclusive_group()
    option(group, "--train", "cpu: from the first reference machine; the name of a machine, "
           "committed or unpacked: each device that it swept; profiles: whole steps; neusight, "
           "aiconfigurator: from published kernels; gpu: from what others measured on GPUs; "
           "gains: of layouts and bf16 on a CPU; runtimes: of a CPU; power: of GPUs, and what "
           "power limits and clocks change", metavar="WHAT")
    flag(group, "--errors", "show the errors on held-out data, a graded line per question")
    option(group, "--outsiders", "show the errors on what others measured: tables of DeepBench, "
           "timm, NeuSight, Gavel, Zeus or pytorch-gpu-benchmark, networks.parquet, or your CSV "
           "with the columns model (a network, or an operator: \"matmul gemm_m=64 ...\"), device, "
           "measured_ms, and any others of --questions", a_path, nargs="+", metavar="FOLDER")
    option(verb, "--labels", "of --train power: summary_power_<device>.csv of Zeus's trace, and "
           "EnergAIzer's energaizer/{a100,a10,dvfs}.csv",
           a_path, paths.IMPORTED, metavar="FOLDER")
    option(verb, "--source", "of --train profiles: of this machine and imported ones, or the "
           "reference's, which ship", default="measure", choices=("measure", "replay"))
    flag(verb, "--ship", "of --outsiders: save the predictions, and the spread of boards")
    flag(verb, "--all", "of --errors, --outsiders: a line per device, kind, mode and condition")
