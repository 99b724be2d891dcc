"""The verb of layers of TensorRT engines: ``layer-power``, from raw recordings to predictions. Imports nothing heavy."""

import argparse
from pathlib import Path

from lib import files, paths
from lib.cli.options import Option, a_path, add_verb, flag, folder_name, note, option, whole
from lib.errors import InputError

FOLDER = paths.DATA / "layer_power"
_TARGETS, _KINDS = ("runtime", "power"), ("convolutional", "pooling", "dense")
_TRAINING = option("training", read=a_path, default=FOLDER / "training_data", nargs="?")
_LEAST = option("--per-layer-measurements", "runs with a power sample that a layer's power needs at least", whole(1), 10,
                metavar="N")
_PROFILE = option("--profile", "the optimisation profile whose layers are read (default: the first, 0)", whole(0, 999_999),
                  metavar="N")
_REGISTRY = option("--registry", "an MLflow registry (default: SQLite in data/mlflow)", default="", metavar="URI")


def _show(recordings) -> None:
    for recording in recordings:
        for path in recording.written:
            print(path)
        for text in recording.notes:
            note(f"{recording.model}: {text}")


def _preprocess(options: argparse.Namespace) -> None:
    from lib.tensorrt.recordings import dataset

    _show(dataset.preprocess(options.raw, options.out / "preprocessed_data", options.profile))


def _convert(options: argparse.Namespace) -> None:
    from lib.tensorrt.recordings import dataset

    _show(dataset.convert(options.preprocessed, options.out / "training_data", options.per_layer_measurements))


def _dataset(options: argparse.Namespace) -> None:
    from lib.work import data_copy

    options.preprocessed = options.out / "preprocessed_data"
    _preprocess(options)
    _convert(options)
    if options.push:
        print(f"{len(data_copy.push(options.out, options.push))} files pushed to {options.push}")


def _train(options: argparse.Namespace) -> bool:
    from lib.tensorrt.models import training
    from lib.tensorrt.recordings import dataset

    registry = None
    if options.register is not None:
        from lib.tensorrt.models.model_registry import CHAMPION, Registry

        registry = Registry(options.register)
        registry.check()  # that it can be written to: training takes minutes
    table, trained = dataset.read_training(options.training), 0
    for target in options.targets:
        models, refused = training.train(table, target, options.device, options.source, options.licence,
                                         learner=options.learner)
        for model in models:
            print(f"{training.save(model, options.out)}: {training.words(model)}")
            if registry:
                name = f"{model.kind}-{model.target}-{model.device}"
                print(f"registered {name}, version {registry.register(name, model, CHAMPION)}, in {registry.shown}")
        for reason in refused:
            note(f"refused: {reason}")
        trained += len(models)
    return not trained


def _tune(options: argparse.Namespace) -> None:
    from lib.tensorrt.models import training
    from lib.tensorrt.recordings import dataset

    table, settings, chosen = dataset.read_training(options.training), training.load_settings(), {}
    for kind in options.kinds:
        study = training.search(table, kind, options.target, options.device, settings, options.trials, options.seed)
        chosen[options.target, kind] = training.best(study)
        print(f"{options.target} of {kind} layers, training networks left out: RMSPE {100 * study.trials[0].value:.1f} % with "
              f"the first setting, {100 * study.best_value:.1f} % with {chosen[options.target, kind].model_dump_json()}")
    if options.write:
        print(training.write(chosen))


def _versions(options: argparse.Namespace) -> None:
    from lib.tensorrt.models.model_registry import Registry

    registry = Registry(options.registry)
    if options.alias:
        registry.set_alias(options.model, *options.alias)
    for version in registry.versions(options.model):
        print(f"{version.name} {version.number}: {', '.join(version.aliases) or 'no alias'}; MAPE "
              f"{100 * version.scores['mape']:.1f} %")


def _models(options: argparse.Namespace):
    """Return the models that are asked: of a registry where some are named, else of folders."""
    from lib.tensorrt.models import training
    from lib.tensorrt.models.model_registry import CHAMPION, Registry

    if options.registry and not options.model:
        raise InputError("--registry needs --model NAME@ALIAS ...; python -m lib layer-power versions lists them")
    if options.model:
        named = [name.partition("@") for name in options.model]
        return [Registry(options.registry).load(name, alias or CHAMPION) for name, _, alias in named]
    folders = (options.models,) if options.models else (training.OWN, training.SHIPPED)
    own = options.device if options.device in training.devices(folders) else ""
    return training.load_models(options.model_device or own, folders)


def _predict(options: argparse.Namespace) -> None:
    from lib.tensorrt import engine
    from lib.tensorrt.models import predictions

    read, models, target = engine.read(options.trt_engine_path, options.profile), _models(options), options.result_csv_path
    stream, earlier = files.is_stream(target), target.is_file()
    what = "a folder" if target.is_dir() else "the engine" if target.resolve() == options.trt_engine_path.resolve() else (
        "a link to another file" if target.is_symlink() and not stream else "")  # as /dev/stdout may be
    if what:
        raise InputError(f"{target} is {what}; --result-csv-path names a table, which is replaced where it exists")
    rows = predictions.of_engine(read, models, options.device, options.strict)
    (files.create if stream else files.replace)(target, rows.to_csv(index=False).encode())
    sums = predictions.total(rows)
    line = "{covered} of {layers} layers predicted: {runtime_ms:,.3f} ms ({low_ms:,.3f}-{high_ms:,.3f}), " + (
        "{power_w:,.2f} W above idle, {energy_mj:,.2f} mJ" if sums["energy_mj"] == sums["energy_mj"] else "power not known")
    print(f"{target}: {line.format_map(sums)}")
    if earlier:
        note(f"{target} replaces an earlier table")
    if rows["power_prediction"].isna().all():
        note("to get watts, record networks where power is metered (params/collect_power.py with params/"
             "profile_layers.py), then: python -m lib layer-power dataset RAW; python -m lib "
             "layer-power train --device DEVICE")
    for text, count in rows["note"].value_counts().items():
        if text:
            note(f"{count} layers: {text}")


def _out(default: Path = FOLDER) -> Option:
    return option("--out", "the folder to write to", a_path, default)


def add(verbs) -> None:
    """Add the verb of layers of engines."""
    verb = verbs.add_parser("layer-power", help="time, power and energy of the layers of TensorRT engines")
    steps = verb.add_subparsers(dest="step", required=True, metavar="step")
    add_verb(steps, _dataset, "dataset", "from raw recordings to training data: preprocess, then convert",
             option("raw", "folder of recordings, <model>/trt_engine_info.json and beside it its latencies", a_path),
             _out(), _LEAST, _PROFILE,
             option("--push", "copy what was built there, as data push does", metavar="URL"))
    add_verb(steps, _preprocess, "preprocess", "bring the power of raw recordings to their layers",
             option("raw", "folder of recordings", a_path), _out(), _PROFILE)
    add_verb(steps, _convert, "convert", "turn preprocessed recordings into training data, a table a kind of layer",
             option("preprocessed", read=a_path, default=FOLDER / "preprocessed_data", nargs="?"),
             _out(), _LEAST)
    _add_models(steps)


def _add_models(steps) -> None:
    """Add the steps of models: train, tune, predict."""
    add_verb(steps, _train, "train", "train models of runtime and power of layers on training data",
             _TRAINING, option("--device", "what they were recorded on, such as rtx-3060-laptop", folder_name, required=True),
             option("--targets", default=_TARGETS, nargs="+", choices=_TARGETS),
             option("--learner", "lasso is the original study's pipeline (default: that of params/layer_power.yaml)",
                    default="", choices=("physics", "lasso")),
             option("--source", "where the recordings come from", default=""),
             option("--licence", "the licence of the recordings", default=""),
             option("--register", "register the models in MLflow as champions (default: SQLite in data/mlflow)", nargs="?",
                    const="", metavar="URI"),
             _out(paths.DATA / "trained_models"))
    add_verb(steps, _tune, "tune", "search settings of the models with Optuna, on training networks alone",
             _TRAINING, option("--device", "what they were recorded on; names the study", folder_name, required=True),
             option("--target", default="runtime", choices=_TARGETS),
             option("--kinds", default=_KINDS, nargs="+", choices=_KINDS),
             option("--trials", "trials beyond those of earlier searches", whole(1, 100_000), 100),
             option("--seed", "of the search", whole(0, 2**32 - 1), 0),
             flag("--write", "put the best settings into params/layer_power.yaml, for review"))
    add_verb(steps, _predict, "predict", "predict the runtime and power of each layer of an engine",
             option("--trt-engine-path", "the engine's information as JSON", a_path, required=True),
             option("--result-csv-path", "the table to write, one row per layer; an existing file is replaced", a_path,
                    required=True),
             _PROFILE, _REGISTRY,
             option("--model", "registered models, by alias or version", default=[], nargs="+", metavar="NAME@ALIAS"),
             option("--models", "folder of trained models (default: this machine's, then the shipped ones)", a_path),
             option("--model-device", "the device whose models are asked (default: that of --device, or the only one)",
                    default=""),
             option("--device", "what the engine runs on", default=""),
             flag("--strict", "refuse where that is not the device of the models"))
    add_verb(steps, _versions, "versions", "list the registered versions of models, with their aliases and scores",
             option("model", "one model (default: all)", default="", nargs="?"),
             option("--alias", "let an alias name version N of the model first", nargs=2, metavar=("ALIAS", "N")),
             _REGISTRY)
