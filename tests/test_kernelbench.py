"""KernelBench's calls become graphs: shapes, weights, edges between calls, recurrent layers, defaults."""

import pandas as pd
import pytest

from lib.errors import InputError
from lib.predict.gpu import rows
from lib.predict.published import kernelbench
from lib.work.graph import counts, recurrent
from tests import SHARED

CALLS = [
    ("convolution", '["tensor[2, 3, 8, 8]", "tensor[4, 3, 3, 3]", null, [1, 1], [1, 1], [1, 1], false, [0, 0], 1]',
     "[[2, 4, 8, 8]]", '["float32", "float32"]', "[-1, -1]"),
    ("relu_", '["tensor[2, 4, 8, 8]"]', "[[2, 4, 8, 8]]", '["float32"]', "[0]"),
    ("max_pool2d_with_indices", '["tensor[2, 4, 8, 8]", [2, 2], [2, 2]]', "[[2, 4, 4, 4], [2, 4, 4, 4]]", '["float32"]', "[1]")]

# the CPU's loop over two steps of one layer, in part, and a linear layer of the last step
LOOP = [
    ("addmm", '["tensor[18]", "tensor[6, 4]", "tensor[4, 18]"]', "[[6, 18]]", '["float32", "float32", "float32"]',
     "[-1, -1, -1]"),
    ("tanh_", '["tensor[3, 6]"]', "[[3, 6]]", '["float32"]', "[0]"),
    ("stack", '[["tensor[3, 6]", "tensor[3, 6]"]]', "[[2, 3, 6]]", '["float32", "float32"]', "[1, 1]"),
    ("stack", '[["tensor[3, 6]"]]', "[[1, 3, 6]]", '["float32"]', "[1]"),
    ("addmm", '["tensor[5]", "tensor[3, 6]", "tensor[6, 5]"]', "[[3, 5]]", '["float32", "float32", "float32"]', "[-1, 2, -1]")]
SIZES = "module,layer,input_size,hidden_size,num_layers,bidirectional,batch_first,bias,module_inputs"
LAYER = 'L3_001,{},4,6,1,False,False,True,"[[2, 3, 4]]"'


@pytest.fixture
def folder(tmp_path):
    columns = ["operator", "arguments", "outputs", "dtypes", "inputs_from"]
    calls = pd.DataFrame(CALLS, columns=columns).assign(module="L2_001", level=2, name="Conv", place=range(len(CALLS)))
    loop = pd.DataFrame(LOOP, columns=columns).assign(module="L3_001", level=3, name="GRU", place=range(len(LOOP)))
    pd.concat([calls, loop]).to_parquet(tmp_path / kernelbench.OPERATORS)
    (tmp_path / kernelbench.RECURRENT).write_text(f"{SIZES}\n{LAYER.format('GRU')}\n")
    return tmp_path


def test_calls_become_a_graph(folder):
    modules = kernelbench.modules(folder)
    assert list(modules) == ["L2_001", "L3_001"]
    convolution, relu, pool = modules["L2_001"].graph.ops
    assert counts.matrix_flops(convolution) == 2 * 2 * 4 * 8 * 8 * 3 * 3 * 3
    assert [spec.kind for spec in convolution.tensors] == ["input", "parameter"]
    assert relu.tensors[0].storage == relu.outputs[0].storage == convolution.outputs[0].storage == pool.tensors[0].storage
    assert pool.args[3] == (0, 0)  # padding, as the operator's schema has it
    table = rows.of_graph(modules["L2_001"].graph)
    assert {"stem", "relu", "pool"} <= set(table["kind"])


def test_a_recurrent_layer_is_one_call_and_what_follows_reads_its_output(folder):
    module = kernelbench.modules(folder)["L3_001"]
    layer, linear = module.graph.ops
    assert (module.level, module.name, linear.short) == (3, "GRU", "addmm")
    assert recurrent.sizes(layer) == ("gru", 4, 6, 1, 1, 2, 3, 6)
    assert counts.matrix_flops(layer) == 2 * 2 * 3 * 3 * 6 * (4 + 6)
    assert [spec.kind for spec in layer.tensors[:5]] == ["input"] + ["parameter"] * 4
    bias, last_step, weight = linear.tensors
    assert last_step.storage == layer.outputs[0].storage
    storages = {spec.storage for spec in (*layer.tensors, *layer.outputs)}
    assert storages.isdisjoint({bias.storage, weight.storage, linear.outputs[0].storage})


@pytest.mark.parametrize("content, words", [
    (f"{SIZES}\n{LAYER.format('GUR')}\n",
     "no recurrent layer 'GUR' in recurrent.csv for L3_001; there are: LSTM, GRU, RNN; did you mean GRU"),
    ("module\nL3_001\n", "recurrent.csv has no columns")])
def test_an_unknown_recurrent_layer_and_missing_sizes_are_refused(folder, content, words):
    (folder / kernelbench.RECURRENT).write_text(content)
    with pytest.raises(InputError, match=words):
        kernelbench.modules(folder)


@pytest.mark.slow
def test_every_published_module_is_there_and_a_layer_has_the_products_of_its_loop():
    folder = SHARED / "data/kernelbench"
    if not folder.is_dir():
        pytest.skip("no published measurements here")
    modules = kernelbench.modules(folder)
    assert set(modules) == set(kernelbench.labels(folder)["module"])
    calls = pd.read_parquet(folder / kernelbench.OPERATORS)
    for module in ("L3_039", "L3_041"):  # a GRU in one direction, and in both
        loop = calls[(calls["module"] == module) & (calls["operator"] == "addmm")]
        (layer,) = modules[module].graph.ops
        assert counts.matrix_flops(layer) == loop["flops"].sum()


def test_a_table_without_edges_is_refused(folder):
    path = folder / kernelbench.OPERATORS
    pd.read_parquet(path).drop(columns="inputs_from").to_parquet(path)
    with pytest.raises(InputError, match="inputs_from"):
        kernelbench.modules(folder)
