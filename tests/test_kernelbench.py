"""KernelBench's calls become graphs: shapes, weights, edges between calls, defaults that were not recorded."""

import pandas as pd
import pytest

from lib.errors import InputError
from lib.predict.cards import rows
from lib.predict.published import kernelbench
from lib.work.graph import counts

CALLS = [
    ("convolution", '["tensor[2, 3, 8, 8]", "tensor[4, 3, 3, 3]", null, [1, 1], [1, 1], [1, 1], false, [0, 0], 1]',
     "[[2, 4, 8, 8]]", '["float32", "float32"]', "[-1, -1]"),
    ("relu_", '["tensor[2, 4, 8, 8]"]', "[[2, 4, 8, 8]]", '["float32"]', "[0]"),
    ("max_pool2d_with_indices", '["tensor[2, 4, 8, 8]", [2, 2], [2, 2]]', "[[2, 4, 4, 4], [2, 4, 4, 4]]", '["float32"]', "[1]")]


@pytest.fixture
def folder(tmp_path):
    columns = ["operator", "arguments", "outputs", "dtypes", "inputs_from"]
    calls = pd.DataFrame(CALLS, columns=columns).assign(module="L2_001", level=2, name="Conv", place=range(len(CALLS)))
    recurrent = calls.head(1).assign(module="L3_001")
    pd.concat([calls, recurrent]).to_parquet(tmp_path / kernelbench.OPERATORS)
    (tmp_path / kernelbench.RECURRENT).write_text("module\nL3_001\n")
    return tmp_path


def test_calls_become_a_graph(folder):
    modules = kernelbench.modules(folder)
    assert list(modules) == ["L2_001"]
    convolution, relu, pool = modules["L2_001"].graph.ops
    assert counts.matrix_flops(convolution) == 2 * 2 * 4 * 8 * 8 * 3 * 3 * 3
    assert [spec.kind for spec in convolution.tensors] == ["input", "parameter"]
    assert relu.tensors[0].storage == relu.outputs[0].storage == convolution.outputs[0].storage == pool.tensors[0].storage
    assert pool.args[3] == (0, 0)  # padding, as the operator's schema has it
    table = rows.of_graph(modules["L2_001"].graph)
    assert {"stem", "relu", "pool"} <= set(table["kind"])


def test_a_table_without_edges_is_refused(folder):
    path = folder / kernelbench.OPERATORS
    pd.read_parquet(path).drop(columns="inputs_from").to_parquet(path)
    with pytest.raises(InputError, match="inputs_from"):
        kernelbench.modules(folder)
