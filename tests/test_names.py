"""Names as people type them: other spellings are understood, and an unknown name is one line with the nearest ones."""

import json
import re
import shlex

import pandas as pd
import pytest
from ipywidgets.widgets import interaction

from lib import __version__, names, paths, progress
from lib.config import definitions, notebooks
from lib.measure import machine
from lib.predict import registry
from lib.predict.advice import advise, advise_text
from lib.work import networks
from lib.work.run_config import CHOICES, DeviceCondition, RunConfig
from lib.work.runtimes import RUNTIMES
from tests import advice_on, output_of, refusal, refused

DEVICES = {
    "rtx-4090": "rtx-4090", "RTX 4090": "rtx-4090", "rtx4090": "rtx-4090", "4090": "rtx-4090", "NVIDIA RTX 4090": "rtx-4090",
    "4090 laptop": "", "NVIDIA GeForce RTX 4090 Laptop GPU": "rtx-4090-laptop", "1080ti": "gtx-1080-ti", "Tesla T4": "t4",
    "A100-SXM4-80GB": "a100-sxm-80gb", "H200": "h200-sxm", "h100": "", "l40": "", "NVIDIA A10G": "", "": "", "?": ""}


@pytest.mark.parametrize("typed, id_", DEVICES.items())
def test_a_device_is_found_by_its_id_its_vendors_name_and_its_aliases(typed, id_):
    assert definitions.find_device(typed) == id_


def test_every_id_and_name_and_alias_means_one_device():
    devices = definitions.load_devices()
    assert all(definitions.find_device(name) == id_ for id_, device in devices.items()
               for name in (id_, id_.upper(), device.name, *device.aliases))


@pytest.mark.parametrize("typed, near", [
    ("h100", "h100-sxm, h100-pcie"), ("A100 40GB", "a100-sxm-40gb, a100-pcie-40gb"), ("NVIDIA A10G", "a10"), ("cpuu", "cpu")])
def test_a_device_that_is_several_or_none_is_refused_with_the_candidates(typed, near):
    for call in (lambda: registry.for_devices([typed], "fp32"), *[lambda: definitions.vendor_device(typed)] * (near != "cpu")):
        with refused(f"no device '{typed}'.*; did you mean {near}[?,]"):
            call()


def test_a_gpu_is_asked_for_as_cuda_where_there_is_none(monkeypatch):
    monkeypatch.setattr(machine, "devices", lambda: ["cpu"])
    for typed in ("cuda", "gpu", "GPU", "cuda:1"):
        with refused("torch finds no CUDA GPU in this machine; name a GPU of params/devices.yaml"):
            registry.for_devices([typed], "fp32")
        with refused("is not here; this machine has: cpu"):
            machine.device(typed)


@pytest.mark.parametrize("typed, name", [
    ("ResNet-50", "resnet50"), ("efficientnet b0", "efficientnet_b0"), ("w1", "W1"), ("regnet_x_16gf", "regnet_x_16gf"),
    ("resnet51", "resnet51"), ("timm/resnet50.a1_in1k", "timm:resnet50.a1_in1k"), ("google/vit", "hf:google/vit")])
def test_a_model_is_found_by_other_spellings(typed, name):
    assert networks.spelled(typed) == RunConfig(typed).network == name


@pytest.mark.parametrize("typed, words", [
    ("efficientnet", "did you mean efficientnet_b"), ("timm:ResNet50", r"did you mean resnet50\?"),
    ("vit_base_patch16_224", "did you mean timm:vit_base_patch16_224, "),
    *((typed, f"curl -fL --create-dirs -o {name}/config.json https://huggingface.co/{name}/resolve/main/config.json$")
      for typed, name in (("org/name", "org/name"), ("hf:bert-base", "bert-base"))),
    ("hf:no such/place/of.json", "nothing is looked up in the network$")])
def test_a_model_that_is_none_says_what_to_ask_for(typed, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with refused(words):
        networks.network(typed)


@pytest.mark.parametrize("typed, choices, known", [
    ("torch.half", ("fp32", "fp16"), "fp16"), ("FP-16", ("fp32", "fp16"), "fp16"), ("float16", ("fp32", "bf16"), "float16"),
    ("Training", ("infer", "train"), "train"), ("NHWC", ("contiguous", "channels_last"), "channels_last"),
    ("onnx", tuple(RUNTIMES), "onnxruntime"), ("ab", ("a-b", "a_b"), "ab"), ("-", ("", "a"), "-"), ("fp7", ("fp32",), "fp7")])
def test_a_choice_is_known_by_its_alias_or_another_spelling_alone(typed, choices, known):
    assert names.known(typed, choices) == known


def test_parameters_of_notebooks_are_spelled_as_people_do():
    profile = notebooks.check("02_profile", {"precision": "float16", "device": "GPU", "optimizer": "Adam"})
    assert (profile.precision, profile.device, profile.optimizer) == ("fp16", "cuda", "adam")
    sweep = notebooks.check("03_sweep", {"dtype": "half", "device": "CPU, cuda:0", "op": "conv2d, linear"})
    assert (sweep.dtype, sweep.device, sweep.ops) == ("fp16", "cpu,cuda:0", ["conv2d", "linear"])
    assert notebooks.check("06_cost_model", {"dtype": "torch.bfloat16", "mode": "training"}).dtype == "bf16"
    with refused("device = 'h100' should match pattern '.*auto|cpu"):
        notebooks.check("02_profile", {"device": "h100"})
    with refused(r"unknown name 'bach-size' \(known: .*\); did you mean batch_size\?"):
        notebooks.given("notebooks/06_cost_model.ipynb", {"bach-size": 4}, "06")
    with refused(r"no workload 'w1'; there are: W1, .*; did you mean W1\?"):
        definitions.workload("w1")


@pytest.mark.parametrize("line, words", [
    ("advize resnet18", "did you mean advise, advise-op?"), ("run_jobs x", "did you mean run-jobs?"),
    ("advise resnet18 --bach-size 2", "unrecognized arguments: --bach-size 2; did you mean --batch-size? (see python -m lib "
                                      "advise --help)"),
    ("advise resnet18 --mode infr", "did you mean infer?"), ("run --sauce replay", "did you mean --source?"),
    ("run 02 -p bach_size 2", "did you mean batch_size?"),
    ("measure networks --devise cpu", "did you mean --device?")])
def test_a_mistyped_verb_option_or_value_is_one_line_with_the_nearest(line, words):
    assert words in refusal(*shlex.split(line))


def test_a_command_line_is_spelled_as_people_do():
    spelled = "python -m lib advise ResNet-50 --device 'NVIDIA RTX 4090' --dtype float16 --batch_size 256"
    assert_shown(spelled, SHOWN[0][1].partition("\n")[2])
    assert output_of("--version") == f"{__version__}\n"
    assert output_of().startswith("python -m lib advise resnet50") and len(output_of().splitlines()) < 9


# ------------------------------------------------------------------------------------------- what the documents show

ON_ONE_MACHINE = "<!-- on one machine -->\n"  # in front of a block whose output depends on the machine
BLOCK = re.compile(r"(?m)^(.*\n)```console\n([\s\S]*?)\n```$")
SHOWN = [(path.name, block) for path in (paths.ROOT / "README.md", *sorted((paths.ROOT / "docs").glob("*.md")))
         for before, block in BLOCK.findall(path.read_text()) if before != ON_ONE_MACHINE]


def assert_shown(command, shown):
    """Compare what a command prints with a text in which ``...`` stands for any text."""
    printed = output_of(*shlex.split(command, comments=True)[3:])
    pattern = re.sub(r"(\\ )?\\\.\\\.\\\.", r"[\\s\\S]*", re.escape(shown.strip()))
    is_same = re.fullmatch(pattern, printed.strip()) is not None
    assert is_same, f"{command} prints, so put this into the document:\n{printed}"


@pytest.mark.parametrize("name, block", SHOWN)
def test_a_block_of_the_documents_shows_what_the_command_prints(name, block):
    for part in block.removeprefix("$ ").split("\n$ "):
        command, _, shown = part.partition("\n")
        assert_shown(command, shown)


# ------------------------------------------------------------------------------------------- the form of 06_cost_model

def test_the_form_pressed_untouched_gives_the_numbers_above_it_and_other_devices_on_request(monkeypatch):
    forms, shown = [], []
    monkeypatch.setattr(progress, "watched", lambda: True)
    monkeypatch.setattr(interaction, "display", forms.append)
    advice = advice_on(["t4", "h100-sxm"], "alexnet", 16, compiled=False)
    cells = json.loads((paths.NOTEBOOKS / "06_cost_model.ipynb").read_text())["cells"]
    source = "\n\n\n".join("".join(cell["source"]) for cell in cells if "form" in cell["metadata"].get("tags", ()))
    exec(source, {"advice": advice, "devices": ["t4", "h100-sxm"], "advise": advise, "advise_text": advise_text,
                  "CHOICES": CHOICES, "RunConfig": RunConfig, "DeviceCondition": DeviceCondition, "display": shown.append,
                  "Markdown": str})
    (form,) = forms
    fields = {field.description.split()[0]: field for field in form.kwargs_widgets}
    assert fields["compiled"].value is False and fields["threads"].value == 0 and set(fields) >= {"device", "network", "dtype"}
    form.manual_button.click()
    fields["device"].value = "rtx-4090"
    form.manual_button.click()
    above, chosen = (advise_text.table(of) for of in (advice, advice_on("rtx-4090", "alexnet", 16)))
    for answer, table in zip(shown[1::2], (above, chosen), strict=True):
        pd.testing.assert_frame_equal(answer, table.round(2))
