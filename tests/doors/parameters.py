"""The door of the notebooks' parameters: every class of them, with any values for any names."""

import math
from pathlib import Path

from hypothesis import strategies as st

from lib.config import notebooks
from lib.errors import InputError
from tests.doors import VALUES, Door, pick

ODD = st.sampled_from([
    *VALUES, False, 10**5000, math.inf, " ", "7", "true", ["W1"], b"x", object(), "/etc/passwd", "..", "-x", "a'b\"c",
    "x" * 2000, "a\nb", "a\0b", "\ud800", "\u2028", "\u0663x28x28", "cuda,cuda:0", "all", "W1,,W2", "0/0",
    "9" * 400 + "/1", "<img src=x>", "%s{0}", "3x28x28"]) | st.text(max_size=8) | st.integers() | st.floats()


def attempt(name, data):
    """Give a notebook odd values: they are parameters, or one line names each that is wrong."""
    model = notebooks.NOTEBOOKS[name]
    values = data.draw(st.dictionaries(st.sampled_from(sorted(model.model_fields)), ODD, max_size=3))
    try:
        p = notebooks.check(name, values)
    except InputError as error:
        assert any(f"{field} = " in str(error) for field in values)
        return "refused"
    assert notebooks.check(name, p.model_dump()) == p
    for field, value in p:
        assert not isinstance(value, float) or math.isfinite(value)
        assert not isinstance(value, str) or len(value.splitlines()) <= 1
        assert field not in ("reference", "name") or value in ("", Path(value).name)
    for attribute, kind in vars(model).items():
        assert not isinstance(kind, property) or isinstance(getattr(p, attribute), list | tuple)
    return "read"


DOOR = Door("parameters of notebooks", lambda data, folder: attempt(pick(data, notebooks.NOTEBOOKS, "notebook"), data))
