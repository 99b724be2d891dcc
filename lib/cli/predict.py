"""The verbs that predict: ``advise``, ``advise-op``, ``calibrate``, ``models``. Imports nothing heavy."""

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lib import paths
from lib.cli.options import a_path, add_verb, flag, new_file, note, number, option, whole
from lib.errors import InputError, choices
from lib.names import known
from lib.work.runtimes import RUNTIMES

_BUDGET_S = 120.0  # of calibrate
_PATIENCE_S = 2.0  # for a quiet machine, before its ceilings are measured
_DEVICES = (  # options of an answer on several devices
    option("--dtype", "int8: on this CPU, quantised", default="fp32", choices=("fp32", "bf16", "fp16", "int8")),
    option("--device", "a device (cuda:0: this machine's card), or a reference machine whose models were trained (NAME, or "
           "cpu@NAME); may be given again (default: all with a model)", lambda text: known(text, ["cpu"]), [], action="append"),
    flag("--no-ceilings", "measure nothing: neither the ceilings of this CPU (ten seconds, once) where it has no model of its "
                          "own, nor its speed now", "--no-look"),
    flag("--json", "print a list of objects, one per device; with --verify, this CPU's object holds what was measured, too"))


def _with_ceilings(options: argparse.Namespace, ask: Callable[[], Any], dtype: str = "fp32") -> Any:
    """Return the answer. If this CPU uses another CPU's model (of ``dtype``), measure its ceilings first.

    While another measurement or other processes run, the ceilings are not measured and the answer is not scaled.
    """
    import torch

    from lib import locks
    from lib.measure import disturbance
    from lib.measure.statistics import STABLE
    from lib.predict import registry, transfer_cpu

    answer = ask()
    has_cpu = not options.device or "cpu" in options.device
    cpu = registry.predictor("cpu", dtype) if has_cpu and not options.no_ceilings else None
    if cpu is None or not cpu.is_unscaled:
        return answer
    beside = disturbance.wait_for_quiet(torch.get_num_threads(), _PATIENCE_S)
    if beside.verdict(torch.get_num_threads()) != STABLE:
        note(f"the ceilings of this CPU are not measured now, and the answer is not scaled to it: {beside.words()}")
        return answer
    note("no model of this CPU: measuring its ceilings first (10 s, once; skip with --no-ceilings)")
    try:
        transfer_cpu.measure_ceilings(wait_s=0.0)
    except locks.HeldError as error:
        note(f"not measured now, the answer is not scaled to this machine: {error}")
        return answer
    return ask()


def _as_json(rows: list) -> str:
    from lib.predict.advice import advise_text

    return json.dumps(advise_text.plain(rows), indent=1, allow_nan=False)


def _advise(options: argparse.Namespace) -> bool:
    if options.questions:
        return _answer_questions(options)
    if not options.model or options.out:
        raise InputError("advise takes a network, or --questions FILE.csv and --out" if not options.model else
                         "--out is of --questions; an answer about one network is printed")
    from lib.measure import disturbance
    from lib.measure.reference_kernel import kernel_now
    from lib.predict.advice import advise, advise_text, suggestions

    if options.code:
        from lib.predict.advice import snippets

        print(snippets.snippet(_run_config(options)))
        return False
    in_full = not options.json and (options.explain or options.verify)

    def ask() -> advise.Advice:
        return advise.advise(_run_config(options), options.device, in_full, _device_condition(options))

    watch = disturbance.LoadWatch()
    advice = _with_ceilings(options, ask)
    free_cores = disturbance.cores_left(watch.reading())
    kernel = kernel_now() if advice.of("cpu") and not options.no_ceilings else None
    brief = not (options.json or in_full)
    cpu_load = advise_text.cpu_load_note(advice, free_cores, kernel)
    if options.json:
        verified = suggestions.verified(advice, suggestions.suggestions(advice)) if options.verify else None
        print(_as_json(advise_text.records(advice, verified, cpu_load, kernel)))
        return False
    changes = suggestions.suggestions(advice)
    if brief:
        print(advise_text.screen(advice, changes, cpu_load))
        return False
    print("\n".join(filter(None, (advise_text.text(advice), cpu_load))), flush=True)  # what users' code prints goes to stderr
    if options.verify:
        measured_ms, changes = suggestions.verified(advice, changes)
        print(advise_text.verdict(advice, measured_ms))
    print(advise_text.changes(changes))
    return False


def _run_config(options: argparse.Namespace) -> Any:
    from lib.work.run_config import RunConfig

    names = ("batch_size", "mode", "dtype", "layout", "gpus", "parallel", "runtime", "threads", "instances")
    return RunConfig(options.model, input_shape=options.input, compiled=options.compile,
                     **{name: getattr(options, name) for name in names})


def _device_condition(options: argparse.Namespace) -> Any:
    from lib.work.run_config import DeviceCondition

    return DeviceCondition(power_limit_w=options.power_limit or 0.0)


def _answer_questions(options: argparse.Namespace) -> bool:
    """Answer a file of questions; return whether none of them has an answer."""
    from lib import files
    from lib.predict.advice import questions

    if options.model or options.verify:
        raise InputError("--questions is asked without a network and without --verify: each row names its own")
    rows = questions.read(options.questions, _run_config(options), options.device)
    options.device = sorted({question.device for question in rows}) if all(question.device for question in rows) else []
    table = _with_ceilings(options, lambda: questions.answer(rows, condition=_device_condition(options)))
    note(questions.summary(table))
    if options.out:
        print(files.create(options.out, table.to_csv(index=False).encode()))
    else:
        print(_as_json(table.to_dict("records")) if options.json else table.to_csv(index=False).removesuffix("\n"))
    return (table["error"] != "").all()


def _advise_operator(options: argparse.Namespace) -> None:
    from lib.predict.advice import advise_operator

    wanted = advise_operator.config(options.op, options.parameters, options.dtype, options.passes)
    table = _with_ceilings(options, lambda: advise_operator.advise(wanted, options.device), options.dtype)
    print(_as_json(table.to_dict("records")) if options.json else advise_operator.text(wanted, table))
    for device, why in table.attrs["left_out"].items() if options.json else ():
        note(f"left out: {device}: {why}")


def _calibrate(options: argparse.Namespace) -> None:
    if not options.networks:
        from lib.predict import calibrate

        print(calibrate.summary(calibrate.calibrate(options.device, options.dtype or "fp32", options.budget_s or _BUDGET_S)))
        return
    from lib.config.definitions import load_devices
    from lib.predict import registry
    from lib.predict.cards import calibration

    given = {"--dtype": options.dtype, "--budget-s": options.budget_s}
    if unused := [option for option, value in given.items() if value is not None]:
        raise InputError(f"--networks measures nothing, in no element type of its own: leave out {choices(unused)}")
    device = registry.device_id(options.device)
    if device not in load_devices():
        raise InputError(f"--networks corrects the model of a GPU, which {device} is not; name one by --device: cuda:0 "
                         "or an id of params/devices.yaml")
    print(calibration.summary(calibration.calibrate(device, options.networks)))


def _models(options: argparse.Namespace) -> bool:
    """List the models at hand or their errors, or train those that ship from the reference and the imported data."""
    from lib.predict.evaluation import models_at_hand
    from lib.predict.trust import errors

    if options.outsiders:
        return _outsiders(options)
    if options.errors:
        rows = errors.table()
        shown = errors.weakest_first(rows) if options.all else errors.graded(rows)
        print(_shown(shown, na_rep="-"))
        if not options.all:
            print("Of what no model saw. --all: by device, kind, mode and condition.")
        return False
    for text in _trained(options.train, options.quick, options.source, options.labels) if options.train else ():
        print(text)
    if options.train == "profiles":
        return False
    table = models_at_hand.summary()
    print(_shown(table))
    return (table["part"] == models_at_hand.UNUSABLE).any()


def _outsiders(options: argparse.Namespace) -> bool:
    """Score what ships on labels of others; save the predictions if asked to."""
    from lib.predict.evaluation import outsiders
    from lib.predict.trust import scoreboard

    rows = outsiders.predicted(*options.outsiders, alone=options.ship)
    if len(rows):
        board = scoreboard.scoreboard(rows) if options.all else scoreboard.summary(rows)
        print(_shown(board, na_rep="-") if len(board) else f"only kernels under {scoreboard.SMALL_MS} ms: see --all")
    else:
        print("no label could be predicted")
    for reason, count in rows.attrs["left_out"].items():
        note(f"left out: {count:,} of {reason}")
    if options.ship and len(rows):
        outsiders.ship(rows)
    return not len(rows)


def _shown(table: Any, digits: int = 1, **how: str) -> str:
    return table.to_string(index=False, float_format=f"{{:.{digits}f}}".format, **how)


def _trained(what: str, quick: bool, source: str, folder: Path) -> Iterator[str]:
    """Train models; yield what to print of each."""
    from lib.predict import gain_training, runtime_training
    from lib.predict.cards import learning, unseen_cards
    from lib.predict.evaluation import evaluate, power_limits, profiled_steps
    from lib.predict.power import training

    if what == "profiles":
        for path in profiled_steps.learn_all(source):
            yield f"{path}\n{_shown(profiled_steps.scores(profiled_steps.published(path, source)))}\n"
    elif what == "cpu":
        yield evaluate.evaluate(quick=quick).to_string(index=False)
    elif what == "power":
        yield _shown(training.ship(quick=quick), digits=2)
    elif what == "timm":
        table, reasons = learning.material()
        yield _shown(learning.ship(table))
        yield _shown(unseen_cards.ship(table))
        yield from (f"left out: {name}: {reason}" for name, reason in reasons.items())
    elif what == "power-limits":
        yield _shown(power_limits.ship(folder))
    elif what in ("gains", "runtimes"):
        yield _shown((gain_training if what == "gains" else runtime_training).ship())
    elif what in ("neusight", "aiconfigurator"):
        evaluate.published(what, "bf16" if what == "aiconfigurator" else "fp32", quick)
    else:
        scores, reasons = evaluate.own_machine(what, quick)
        yield scores.to_string(index=False)
        yield from (f"left out: {reason}" for reason in reasons)


def add(verbs) -> None:
    """Add the verbs that predict."""
    for add_options in (_add_advise, _add_advise_operator, _add_models, _add_calibrate):
        add_options(verbs)


def _add_advise(verbs) -> None:
    add_verb(verbs, _advise, "advise", "where a network should run, how long it takes there, and what to change",
             option("model",
                    "a torchvision name, a workload id (W1), timm:NAME, hf:PATH (a folder with a config.json), or module:Class",
                    default="", nargs="?"),
             option("--questions",
                    "answer a table instead: a column model, and any of batch_size, device, mode, dtype, input, layout, "
                    "compile, gpus, parallel, runtime, threads, instances; what a row leaves empty is as the options say",
                    a_path, metavar="FILE.csv"),
             option("--out", "of --questions: the table of answers (default: it is printed)", new_file, metavar="FILE.csv"),
             option("--input",
                    "one sample: 3x224x224, tokens 512:int64, or a YAML file of several by their arguments' names (default: "
                    "the network's usual one)", default="", metavar="SHAPE"),
             option("--batch-size", "of all GPUs together (default: the workload's own, or 1, on each)", whole(1), 0),
             option("--gpus", "equal GPUs of one machine that share the batch (default 1)", whole(1), 1),
             option("--parallel", "of --gpus: ddp (DistributedDataParallel, a process each; default) or data_parallel",
                    default="ddp"),
             option("--mode", default="infer", choices=("infer", "train")),
             option("--layout", "how images lie in memory (channels_last: of cards and of this CPU, from networks measured so)",
                    default="contiguous", choices=("contiguous", "channels_last")),
             flag("--compile", "compiled by torch.compile"),
             option("--runtime", "what runs it on this CPU (default torch)", default="torch",
                    choices=tuple(RUNTIMES)),
             option("--threads", "of each process on this CPU (default: all cores)", whole(0), 0),
             option("--instances", "processes side by side on this CPU (default 1)", whole(1), 1),
             flag("--code", "print a program that runs the network so, to paste and run"),
             option("--power-limit", "under a lowered power limit of GPUs (default: the most that the board may draw)",
                    number(0, 1e4, above=True), metavar="W"),
             flag("--explain",
                  "print all: where each number comes from, errors on what was held out, price, energy, batch sizes"),
             flag("--verify", "measure the prediction and the changes on this machine's CPU"),
             *_DEVICES)


def _add_advise_operator(verbs) -> None:
    add_verb(verbs, _advise_operator, "advise-op",
             "how long one operator takes on each device, at what bandwidth and rate, and why",
             option("op", "a family, such as conv2d, linear, attention; an unknown one lists all"),
             option("parameters",
                    "batch=8 in_channels=64 out_channels=64 height=56 width=56 kernel=3 stride=1 padding=1 ...; a wrong "
                    "name lists those of the family", nargs="*", metavar="NAME=VALUE"),
             option("--pass", default="forward", dest="passes", choices=("forward", "backward")),
             *_DEVICES)


def _add_models(verbs) -> None:
    add_verb(verbs, _models, "models", "the registry: every cost model with its scores; or train those that ship",
             [option("--train",
                     "cpu: from the first reference machine's data; a reference machine's name, committed or "
                     "unpacked: each device that it swept; profiles: whole steps, and what loader, copy and optimizer cost; "
                     "neusight, aiconfigurator: from published data; timm: of whole networks on GPUs, from published "
                     "throughputs; gains: of layouts and bf16 on a CPU, from networks that ran so; runtimes: of a CPU; "
                     "power: of GEMMs on an H200; power-limits: of GPUs, from --labels", metavar="WHAT"),
              flag("--errors",
                   "show instead how wrong they were on what was held out: a graded line for each question that people ask"),
              option("--outsiders",
                     "show instead how wrong they are on what others measured: tables of DeepBench, timm, NeuSight, Gavel, "
                     "Zeus or pytorch-gpu-benchmark, networks.parquet of this project, or a CSV of yours with the columns "
                     "model (a network, or an operator: \"matmul gemm_m=64 ...\"), device and measured_ms, and any others of "
                     "--questions", a_path, nargs="+", metavar="FOLDER")],
             option("--labels", "of --train power-limits: with summary_power_<device>.csv of Zeus's trace", a_path,
                    paths.IMPORTED, metavar="FOLDER"),
             option("--source",
                    "of --train profiles: those of this machine and imported ones (default), or the reference's, which ship",
                    default="measure", choices=("measure", "replay")),
             flag("--quick", "train less, in a fraction of the time"),
             flag("--ship", "of --outsiders: save the predictions, and the spread of boards that intervals take from them"),
             flag("--all",
                  "of --errors: by device, kind of network or operator, mode and condition, the weakest first; of "
                  "--outsiders: by kind, with kernels that are mostly launches"))


def _add_calibrate(verbs) -> None:
    add_verb(verbs, _calibrate, "calibrate", "fine-tune the nearest model to this machine's device by a few measured points",
             option("--device", "cpu (default), cuda:0, or of --networks one of params/devices.yaml", default="cpu"),
             option("--networks",
                    "measure nothing: correct a card's model of whole networks by ten or more that were measured on it, "
                    "benchmark-*.csv as timm writes it or a table networks.parquet; may be given again", a_path,
                    action="append", metavar="FILE"),
             option("--budget-s", f"time for measuring (default {_BUDGET_S:g})", number(10, 1e6)),
             option("--dtype", "default: fp32", choices=("fp32", "bf16", "fp16")))
