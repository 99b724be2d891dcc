"""Every door, with inputs that are right, wrong by construction, or damaged: refused in one line or read as they are."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.doors import (
    bundles,
    comparisons,
    definitions,
    models,
    networks,
    own_tables,
    parameters,
    problems,
    published,
    verbs,
)

DOORS = [one.DOOR for one in (own_tables, problems, definitions, bundles, models, networks, published, comparisons, parameters,
                              verbs)]


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.name)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck),
          phases=[Phase.explicit, Phase.reuse, Phase.generate], print_blob=True)
@given(data=st.data())
def test_what_is_wrong_is_refused_in_one_line_and_nothing_else(door, data):
    with tempfile.TemporaryDirectory() as folder:
        door.attempt(data, Path(folder))
