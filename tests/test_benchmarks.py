"""Benchmarks still run, at toy sizes: three of them on every change, all every night. Their figures are looked at by people."""

import pytest

from benchmarks import __main__ as benchmarks
from tests import nightly

ON_EVERY_CHANGE = ("prediction", "overhead", "learning")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name if name in ON_EVERY_CHANGE else nightly(name)
                                  for name in benchmarks.BENCHMARKS])
def test_a_benchmark_ends_and_prints_figures(home, capsys, name):
    assert benchmarks.main(["--toy", name]) == 0
    title, *figures, _ = capsys.readouterr().out.strip().splitlines()
    assert title.startswith(f"== {name}: ")
    assert any(character.isdigit() for line in figures for character in line) or "skipped" in figures[0]


def test_a_benchmark_that_there_is_none_of_is_named(capsys):
    assert benchmarks.main(["predictoin"]) == 2
    assert "no benchmark predictoin; there are: startup, questions" in capsys.readouterr().err
