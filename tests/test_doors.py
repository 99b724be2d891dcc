"""Every door, with inputs that are right, wrong by construction, or damaged: refused in one line or read as they are."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import FEW
from tests.doors import definitions, models, own_tables, parameters, problems, published, verbs

DOORS = [one.DOOR for one in (own_tables, problems, definitions, models, published, parameters, verbs)]


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.name)
@FEW
@given(data=st.data())
def test_what_is_wrong_is_refused_in_one_line_and_nothing_else(door, data):
    with tempfile.TemporaryDirectory() as folder:
        door.attempt(data, Path(folder))
