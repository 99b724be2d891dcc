"""Networks by the names of libraries, and their inputs: timm's, Hugging Face's from a config, several inputs and tokens."""

import json
import socket

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from lib.measure.networks.program import program
from lib.predict.analytic import complexity
from lib.work import networks
from lib.work.building import fakes, inputs
from lib.work.building.inputs import Input
from lib.work.graph import capture, counts
from lib.work.run_config import RunConfig
from tests import advice_on, in_both_modes, output_of, refused
from tests import written as written_to
from tests.test_capture import ran

pytestmark = pytest.mark.slow

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 100}
SEEN = {"image_size": 32, "patch_size": 8}
SIDES = {f"{side}_{name}": size for side in ("encoder", "decoder")
         for name, size in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 64))}
CONFIGS = {  # by type, and the inputs of one sample
    "bert": ({"architectures": ["BertForMaskedLM"], **SMALL}, {"input_ids": (128,)}),
    "gpt2": ({"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 100, "n_positions": 64}, {"input_ids": (64,)}),
    "t5": ({"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 100},
           {"input_ids": (128,), "decoder_input_ids": (128,)}),
    "clip": ({"text_config": {**SMALL, "max_position_embeddings": 24, "eos_token_id": 99},
              "vision_config": {**SMALL, **SEEN}, "projection_dim": 16}, {"input_ids": (24,), "pixel_values": (3, 32, 32)}),
    "wav2vec2": ({**SMALL, "conv_dim": [16] * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4},
                 {"input_values": (16000,)}),
    "whisper": ({"d_model": 32, **SIDES, "vocab_size": 100, "num_mel_bins": 20, "max_source_positions": 50,
                 "max_target_positions": 40, "pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3,
                 "decoder_start_token_id": 4}, {"input_features": (20, 100), "decoder_input_ids": (40,)})}


def written(folder, name, **config):
    """Write the config of a network of Hugging Face; return the network's name."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": name, **config}))
    return f"hf:{folder}"


@pytest.fixture
def configs(tmp_path):
    """Put a config of each type into a folder of its own; return their names."""
    return {name: written(tmp_path / name, name, **config) for name, (config, _) in CONFIGS.items()}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_is_a_network_with_its_usual_inputs_and_the_operators_that_run(name, configs):
    def products(names):
        return [one for one in names if one.split(".")[1] in counts._MACS]

    net = networks.network(configs[name], 2)
    assert {one.name: one.shape for one in net.batch} == {key: (2, *shape) for key, shape in CONFIGS[name][1].items()}
    assert all(one.is_float != one.name.endswith("_ids") for one in net.batch)
    parameters = sum(parameter.numel() for parameter in net.build().parameters())
    for mode in ("infer", "train"):
        graph = capture.of_network(net, mode)
        assert all(counts.is_counted(op) for op in graph.ops if counts.is_work(op)) and graph.parameters == parameters
        assert products(op.name for op in graph.ops) == products(ran(net, mode)) != []


@pytest.mark.parametrize("name, text, shapes", [
    ("bert", "16", {"input_ids": (3, 16, "int64")}),
    ("t5", "9:int64", {"input_ids": (3, 9, "int64"), "decoder_input_ids": (3, 9, "int64")}),
    ("clip", "7:int32", {"input_ids": (3, 7, "int32"), "pixel_values": (3, 3, 32, 32, "float32")})])
def test_a_sequence_length_is_that_of_all_words_and_a_picture_that_of_the_picture(name, text, shapes, configs):
    assert {one.name: (*one.shape, one.dtype) for one in networks.network(configs[name], 3, text).batch} == shapes


class Pair(nn.Module):
    """Two inputs by name, and a dictionary in a class of its own as output."""

    def __init__(self):
        super().__init__()
        self.words, self.layer = nn.Embedding(50, 8), nn.Linear(8, 4)

    def forward(self, *, ids, weights):
        hidden = self.layer(self.words(ids) * weights.unsqueeze(-1))
        return {"ids": ids, "hidden": [hidden]}


def test_a_users_own_network_takes_tokens_and_several_inputs(tmp_path):
    (tmp_path / "pair.yml").write_text("{ids: '6:int64', weights: 6}")
    asked = f"{__name__}:Pair", 2, str(tmp_path / "pair.yml")
    for mode in ("infer", "train"):
        assert (advice_on(["cpu", "t4"], *asked, mode).table["predicted_ms"] > 0).all()
    step, _ = program(RunConfig(*asked, mode="train"), torch.device("cpu"))
    step()
    assert complexity.analyse(*asked).macs == 2 * 6 * 8 * 4


def test_inputs_are_read_as_they_are_meant():
    assert inputs.parse("3X8X8") == (Input((3, 8, 8)),)
    assert inputs.parse("7:bf16") == (Input((7,), "bfloat16"),)
    assert inputs.parse(":int64") == (Input((), "int64"),)


NO_INPUTS = """
nested.yaml   batch is a dictionary, and an input that is one is not read
name.yaml     'two words' is no name of an argument
3x            input shape '3x' is none
512:int65     no element type 'int65' of an input
nowhere.yaml  nowhere.yaml is missing
empty.yaml    names no input
list.yaml     expected a mapping
wrong.yaml    wrong.yaml: ids '6x' is none
"""


@pytest.mark.parametrize("case", NO_INPUTS.strip().splitlines())
def test_inputs_that_are_none_are_one_line(case, tmp_path, monkeypatch):
    text, words = case.split(maxsplit=1)
    monkeypatch.chdir(written_to(tmp_path, {"empty.yaml": "{}", "list.yaml": "[1, 2]", "wrong.yaml": "ids: 6x",
                                                "nested.yaml": "batch: {x: 16}", "name.yaml": "two words: 6"}))
    with refused(words):
        inputs.parse(text)


@in_both_modes
def test_a_mixture_of_experts_has_an_interval_with_an_upper_end(mode, tmp_path):
    name = written(tmp_path, "mixtral", **SMALL, num_key_value_heads=2, num_local_experts=4)
    answer = advice_on(["cpu", "t4"], name, 2, "32:int64", mode)
    assert answer.table["high_ms"].between(answer.table["predicted_ms"], 1e4).all(), answer.table["flops_not_known"]


class Half(nn.Module):
    """A network in half precision, as its builder leaves it; some of its tensors are shared."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(331, 331), nn.BatchNorm1d(331), nn.Linear(331, 331, bias=False))
        self.layers[2].weight = self.layers[0].weight
        self.half()

    def forward(self, x):
        return self.layers(x)


def test_a_network_that_its_builder_casts_is_captured_in_the_element_type_asked_for():
    """Nothing else may use this width: torch refuses the first cast of a shape alone, and then has it in a cache."""
    width = 331
    assert isinstance(fakes.build(Half).layers[0].weight, FakeTensor)
    for dtype, size in (("float32", 4), ("float16", 2), ("bfloat16", 2)):
        graph = capture.of_network(networks.network(f"{__name__}:Half", 2, str(width)), "train", dtype)
        assert graph.parameter_bytes == size * (width * width + 3 * width)
        assert {op.dtype for op in graph.ops if counts.matrix_flops(op)} == {dtype}


class Reads(nn.Module):
    """A network whose large weights are read while it is built."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(100, 100))
        self.size = int(self.weight.sum().item()) + 4
        self.table = torch.zeros(100, 100).numpy()

    def forward(self, x):
        return x @ self.weight[: self.size]


def test_a_builder_that_reads_large_weights_is_built_of_real_ones():
    assert capture.of_network(networks.network(f"{__name__}:Reads", 1, "4")).output == (1, 100)
    assert type(fakes.build(Reads).weight) is nn.Parameter


NO_NAMES = """
hf:nowhere             nowhere is missing; name a folder that holds a config.json
hf:{}/strange          cannot be read
hf:{}/wrong            cannot be
hf:{}/remote           cannot be read
timm:convnext_tinny    timm has no network 'convnext_tinny'; did you mean convnext_tiny
timm:resnet50.         timm has no '' of 'resnet50'; there are:
timm:resnet50.nobodys  timm has no 'nobodys' of 'resnet50'; there are:
resnet51               no model 'resnet51'; there are: W1
convnext_tinny         ; did you mean convnext_tiny
"""


@pytest.mark.parametrize("case", NO_NAMES.strip().splitlines())
def test_a_name_that_is_none_is_one_line(case, tmp_path):
    name, words = case.split(maxsplit=1)
    for folder, content in {"strange": '{"model_type": "no-such-type"}',
                            "wrong": '{"model_type": "bert", "hidden_size": "wide"}',
                            "remote": '{"model_type": "own", "auto_map": {"AutoConfig": "code.Own"}}'}.items():
        written_to(tmp_path / folder, {"config.json": content, "code.py": "raise SystemExit('it ran')"})
    with refused(words):
        capture.of_network(networks.network(name.format(tmp_path)))


def test_no_config_looks_anything_up_in_the_network(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *address, **_: asked.append(address) or [])
    name = written(tmp_path, "upernet", backbone="microsoft/resnet-50", use_pretrained_backbone=False)
    with refused("cannot be "):
        networks.network(name).build()
    assert asked == []


def test_a_quantised_config_is_one_line(tmp_path):
    changed = {**SMALL, "quantization_config": {"quant_method": "gptq", "bits": 4}}
    for name, config in (("bert", changed), ("clip", {**CONFIGS["clip"][0], "text_config": changed})):
        with refused("quantization_config: no model here is of quantised"):
            networks.network(written(tmp_path / name, name, **config))


@pytest.mark.parametrize("name, family, text, shape, parameters", [
    ("convnext_atto", "convnext", "", (3, 224, 224), 3_695_520),
    ("vit_tiny_patch16_224", "vision_transformer", "3x96x96", (3, 96, 96), 5_686_696),
    ("resnet18.a1_in1k", "resnet", "1x64x64", (1, 64, 64), 11_683_240)])
def test_a_network_of_timm_has_the_size_that_timm_states(name, family, text, shape, parameters):
    net = networks.network(f"timm:{name}", 2, text)
    assert net.shape == (2, *shape) and networks.family(net.name) == family
    graph = capture.of_network(net)
    assert graph.output == (2, 1000) and graph.parameters == parameters


def test_the_command_line_names_the_inputs(configs):
    out = " ".join(output_of("advise", configs["clip"], "--device", "cpu", "--no-ceilings").split())
    assert "a forward pass of 1 sample of input_ids 24:int64, pixel_values 3x32x32, fp32" in out
    assert "not modelled" not in out or "as " in out
