"""Experiments with policies: what is compared; step times of scenarios; the Gantt chart."""


import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from lib.config import definitions
from lib.schedule import experiments, scenarios
from lib.schedule.gantt import gantt
from lib.schedule.policies import policy_for
from lib.schedule.problem import Fleet, Jobs, Problem


def test_a_policy_without_a_device_is_left_out():
    def draw(kind):
        return lambda seed: Problem(Jobs.plain(3), Fleet.from_counts({kind: 2}), np.ones((3, 1)), np.ones((3, 1)))

    policies = {name: policy_for(name) for name in ("cpu-only", "gpu-only", "met")}
    table = experiments.compare({kind: draw(kind) for kind in ("cpu", "gpu")}, policies, 1)
    compared = table.groupby("mix")["policy"].agg(list)
    assert compared.to_dict() == {"cpu": ["cpu-only", "met"], "gpu": ["gpu-only", "met"]}
    assert table["ratio"].tolist() == pytest.approx([4 / 3] * 4), "two devices share three jobs of 1 s"


@pytest.mark.slow
def test_step_times_have_a_source():
    kinds, known = definitions.load_scenarios()
    desk = known["one_gpu"].model_copy(update={"kinds": ("W1", "mobilenet_v2 infer")})
    times = scenarios.class_times(desk.devices, [kinds[name] for name in desk.kinds])
    source, spread = scenarios.by_device(times, desk, "source"), scenarios.time_spread(times, desk)
    assert (source["cpu"] == "measured").all()
    assert source["t4"].str.startswith(("predicted", "zero-shot")).all()
    assert (spread[:, 0] == 0).all() and (spread[:, 1] > 0.05).all()
    problem = scenarios.job_mix(times, desk, 30)(0)
    assert problem.fleet.memory_mb[1] == 16000 and np.isnan(problem.fleet.memory_mb[0])
    assert (problem.jobs.memory_mb > 1).all()


def test_a_gantt_chart_has_a_row_per_device_and_hatches_what_died():
    schedule = pd.DataFrame({"job_id": ["a", "b", "b"], "device": ["cpu[10]", "cpu[9]", "cpu[10]"], "start_s": [0, 0, 2],
                             "end_s": [2, 1, 3], "status": ["done", "lost", "done"]})
    figure = gantt({"one": schedule, "none": schedule.head(0)}, {"a": "W$1"}, 3.0, {"W$1": "#123456"})
    figure.canvas.draw()
    axis = figure.axes[0]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["cpu[9]", "cpu[10]"]
    assert sorted(bar.get_hatch() or "" for bar in axis.patches) == ["", "", "////"]
    assert to_hex(axis.patches[0].get_facecolor()) == "#123456"
    plt.close(figure)
