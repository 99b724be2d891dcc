"""The verb ``layer-power``: from recordings of TensorRT engines to predictions of their layers."""

import argparse
from pathlib import Path

from lib import files, paths
from lib.cli.options import a_path, add_verb, flag, folder_name, note, option, whole
from lib.errors import InputError

FOLDER = paths.DATA / "layer_power"
_TARGETS = ("runtime", "power")


def _preprocess(options: argparse.Namespace) -> None:
    from lib.tensorrt.recordings import preprocess

    _show(preprocess(options.raw, options.output / "preprocessed_data"))


def _convert(options: argparse.Namespace) -> None:
    from lib.tensorrt.layers import convert

    least = options.per_layer_measurements
    _show(convert(options.preprocessed, options.output / "training_data", least))


def _dataset(options: argparse.Namespace) -> None:
    from lib.work import data_copy

    options.preprocessed = options.output / "preprocessed_data"
    _preprocess(options)
    _convert(options)
    if options.push:
        print(f"{len(data_copy.push(options.output, options.push))} files pushed to {options.push}")


def _show(notes: dict[Path, list[str]]) -> None:
    for folder, texts in notes.items():
        print(folder)
        for text in texts:
            note(f"{folder.name}: {text}")


def _train(options: argparse.Namespace) -> bool:
    from lib.tensorrt import training
    from lib.tensorrt.layers import read_training
    from lib.tensorrt.registry import Registry

    registry = None if options.register is None else Registry(options.register, create=True)
    table, trained = read_training(options.training), 0
    origin = {"source": options.source, "licence": options.licence}
    for target in options.targets:
        models, refused = training.train_models(table, target, options.device, options.learner,
                                                **origin)
        for model in models:
            scores = model.scores
            print(f"{training.save_model(model, options.output)}: {target} of {model.kind} layers, "
                  f"networks left out: MAPE {100 * scores['mape']:.1f} %, RMSPE "
                  f"{100 * scores['rmspe']:.1f} %, R2 {scores['r2']:.2f}, n {scores['n']:.0f}")
            if registry:
                name = f"{model.kind}-{target}-{model.device}"
                print(f"registered {name}, version {registry.register(name, model)}")
        for reason in refused:
            note(f"refused: {reason}")
        trained += len(models)
    return not trained


def _tune(options: argparse.Namespace) -> bool:
    from lib.tensorrt import tune
    from lib.tensorrt.engine import KINDS
    from lib.tensorrt.layers import read_training
    from lib.tensorrt.training import load_settings

    table, settings, chosen = read_training(options.training), load_settings(), {}
    for kind in KINDS.values():
        try:
            study = tune.tune(table, kind, options.target, options.device, settings, options.trials)
        except InputError as error:
            note(f"refused: {error}")
            continue
        best = chosen[options.target, kind] = tune.suggested(study.best_trial)
        print(f"{options.target} of {kind} layers, training networks left out: RMSPE "
              f"{100 * study.trials[0].value:.1f} % with the first setting, "
              f"{100 * study.best_value:.1f} % with {best.model_dump_json()}")
    if options.write and chosen:
        print(tune.write_settings(chosen))
    return not chosen


def _versions(options: argparse.Namespace) -> None:
    from lib.tensorrt.registry import Registry

    registry = Registry(options.registry)
    if options.alias:
        with registry.answering():
            registry.client.set_registered_model_alias(options.model, *options.alias)
    for version in registry.versions(options.model):
        mape = version.tags.get("mape_pct", "not known")  # of models of earlier releases
        aliases = ", ".join(version.aliases) or "no alias"
        print(f"{version.name} {version.version}: {aliases}; MAPE, %: {mape}")


def _models(options: argparse.Namespace) -> list:
    """Return the named models of a registry, or those of a device in folders."""
    from lib.tensorrt import training
    from lib.tensorrt.registry import CHAMPION, Registry

    if options.registry and not options.model:
        raise InputError("--registry needs --model NAME@ALIAS ...; python -m lib layer-power "
                         "versions lists them")
    if options.model:
        registry, named = Registry(options.registry), [m.partition("@") for m in options.model]
        return [registry.load(name, alias or CHAMPION) for name, _, alias in named]
    folders = (options.models,) if options.models else (training.OWN, training.SHIPPED)
    return training.load_models(options.model_device, folders, options.device)


def _predict(options: argparse.Namespace) -> None:
    from lib.tensorrt.engine import read_engine
    from lib.tensorrt.predictions import network_total, predict_engine

    engine, target = read_engine(options.trt_engine_path), options.result_csv_path
    if target.is_dir() or target.resolve() == options.trt_engine_path.resolve():
        raise InputError(f"{target} is a folder or the engine; --result-csv-path names a table")
    rows = predict_engine(engine, _models(options), options.device, options.strict)
    files.replace(target, rows.to_csv(index=False).encode())
    total = network_total(rows)
    power = "power not known"
    if total["energy_mj"] > 0:
        power = f"{total['power_w']:,.2f} W above idle, {total['energy_mj']:,.2f} mJ"
    print(f"{target}: {total['covered']} of {total['layers']} layers predicted: "
          f"{total['runtime_ms']:,.3f} ms ({total['low_ms']:,.3f}-{total['high_ms']:,.3f}), {power}")
    if rows["power_prediction"].isna().all():
        note("to get watts, record networks where power is metered, then train a power model: "
             "docs/layer_power.md")
    for text, count in rows["note"].value_counts().items():
        if text:
            note(f"{count} layers: {text}")


def add(verbs) -> None:
    """Add the verb."""
    verb = verbs.add_parser("layer-power", description="time, power and energy of the layers of "
                            "TensorRT engines")
    steps = verb.add_subparsers(dest="step", required=True, metavar="step")
    dataset = add_verb(steps, "dataset", "recordings to training data: preprocess, convert",
                       _dataset)
    option(dataset, "--push", "copy the result, as data push does", metavar="URL")
    preprocess = add_verb(steps, "preprocess", "map the power of recordings to their layers",
                          _preprocess)
    convert = add_verb(steps, "convert", "turn preprocessed recordings into training tables",
                       _convert)
    for verb in (dataset, preprocess):
        option(verb, "raw", "folder of recordings, <model>/trt_engine_info.json and latencies",
               a_path)
    option(convert, "preprocessed", "folder of preprocessed recordings", a_path,
           FOLDER / "preprocessed_data", nargs="?")
    for verb in (dataset, preprocess, convert):
        option(verb, "--output", "the folder to write to", a_path, FOLDER)
    for verb in (dataset, convert):
        option(verb, "--per-layer-measurements", "least windows with a power sample per layer",
               whole(1), 10, metavar="N")
    train = add_verb(steps, "train", "train models of runtime and power of layers", _train)
    tune = add_verb(steps, "tune", "search settings with Optuna, on training networks alone", _tune)
    for verb in (train, tune):
        option(verb, "training", "folder of training tables", a_path, FOLDER / "training_data",
               nargs="?")
        option(verb, "--device", "the recorded device, such as jetson-orin", folder_name,
               required=True)
    option(train, "--targets", "what to predict", default=_TARGETS, nargs="+", choices=_TARGETS)
    option(train, "--learner", "lasso is the original study's pipeline (default: that of "
           "params/layer_power.yaml)", default="", choices=("physics", "lasso"))
    option(train, "--source", "where the recordings come from", default="")
    option(train, "--licence", "the licence of the recordings", default="")
    option(train, "--register", "register the models in MLflow as champions (default: "
           "MLFLOW_TRACKING_URI, or SQLite in data/mlflow)", nargs="?", const="", metavar="URI")
    option(train, "--output", "the folder to write to", a_path, paths.DATA / "trained_models")
    option(tune, "--target", "what to predict", default="runtime", choices=_TARGETS)
    option(tune, "--trials", "trials beyond those of earlier searches", whole(1, 100_000), 100)
    flag(tune, "--write", "put the best settings into params/layer_power.yaml")
    _add_models(steps)


def _add_models(steps) -> None:
    """Add the steps of trained models: predict, versions."""
    predict = add_verb(steps, "predict", "predict the runtime and power of each layer of an engine",
                       _predict)
    option(predict, "--trt-engine-path", "the engine's information as JSON", a_path, required=True)
    option(predict, "--result-csv-path", "the table to write, one row per layer, over an earlier "
           "one", a_path, required=True)
    option(predict, "--model", "registered models, by alias or version", default=[], nargs="+",
           metavar="NAME@ALIAS")
    option(predict, "--models", "folder of models (default: this machine's and shipped ones)",
           a_path)
    option(predict, "--model-device", "the device of the models (default: that of --device, or "
           "the only one)", default="")
    option(predict, "--device", "the device of the engine", default="")
    flag(predict, "--strict", "refuse models of another device")
    versions = add_verb(steps, "versions", "list registered models with aliases and scores",
                        _versions)
    option(versions, "model", "one model (default: all)", default="", nargs="?")
    option(versions, "--alias", "let an alias name version N of the model first", nargs=2,
           metavar=("ALIAS", "N"))
    for verb in (predict, versions):
        option(verb, "--registry", "an MLflow registry (default: MLFLOW_TRACKING_URI, or SQLite "
               "in data/mlflow)", default="", metavar="URI")
