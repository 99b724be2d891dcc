"""The door of the notebooks' parameters: every class of them, with any value for any name."""

from pathlib import Path

from hypothesis import strategies as st

from lib.config import notebooks
from lib.config.base import build
from tests.doors import ANY, SAME, WRONG, Door, pass_through
from tests.doors.definitions import VALUES

ODD = st.sampled_from(VALUES) | st.text(max_size=8) | st.integers() | st.floats() | st.booleans()


def _attempt(data: st.DataObject, folder: Path) -> str:
    name = data.draw(st.sampled_from(sorted(notebooks.NOTEBOOKS)), label="notebook")
    model = notebooks.NOTEBOOKS[name]
    usual = {field: info.default for field, info in model.model_fields.items()}
    how = data.draw(st.sampled_from(["as it is", "unknown name", "not finite", "odd value"]), label="how")
    field, kind = data.draw(st.sampled_from(sorted(usual)), label="parameter"), ANY
    if how == "as it is":
        values, kind = usual, SAME
    elif how == "unknown name":
        values, kind = {**usual, "of_no_meaning": data.draw(ODD)}, WRONG
    elif how == "not finite":
        values, kind = {**usual, field: data.draw(st.sampled_from([float("nan"), float("inf"), -float("inf")]))}, WRONG
    else:
        values = {**usual, field: data.draw(ODD, label="value")}
    return pass_through(lambda: build(model, values, name), kind, f"{name}: {how} for {field}", model())


DOOR = Door("parameters of notebooks", _attempt)
