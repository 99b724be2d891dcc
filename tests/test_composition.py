"""What the graph says of how long storages live."""

from torch import nn

from lib.work.graph import capture


def chain(width=64, mode="infer"):
    model = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, 3, 3))
    return capture.capture(model, (1, 3, 32, 32), mode)


def test_storages_live_as_long_as_something_refers_to_them():
    graph = chain()
    born = {storage: number for number, new in enumerate(graph.made) for storage in new}
    died = {storage: number for number, dead in enumerate(graph.freed) for storage in dead}
    assert set(died) <= set(born)
    assert all(born[storage] <= died[storage] for storage in died)
    convolutions = [number for number, op in enumerate(graph.ops) if op.short == "convolution"]
    assert 64 * 32 * 32 * 4 in graph.made[convolutions[0]].values()


def test_gradients_of_weights_outlive_the_step():
    graph = chain(mode="train")
    weight_gradients = {op.outputs[1].storage for op in graph.ops if op.short == "convolution_backward"}
    assert weight_gradients
    assert not weight_gradients & {storage for dead in graph.freed for storage in dead}
