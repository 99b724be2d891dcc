"""Controls for asking a question again in JupyterLab; a batch run or a report shows none."""

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from lib.errors import InputError
from lib.progress import watched
from lib.report.style import table_html

CHOICES = {"mode": ("infer", "train"), "dtype": ("fp32", "bf16", "fp16")}


def show(query: Mapping[str, Any], answer: Callable[..., tuple[pd.DataFrame, str]]) -> None:
    """Show a form filled with ``query`` whose button shows the table and caption of ``answer(**values)``.

    Nothing where nobody watches.
    """
    if not watched():
        return
    from IPython.display import HTML, display
    from ipywidgets import BoundedIntText, Button, Dropdown, HBox, Output, Text, VBox

    fields, shown = {}, Output()
    for name, value in query.items():
        label = name.replace("_", " ")
        if name in CHOICES:
            fields[name] = Dropdown(options=CHOICES[name], value=value, description=label)
        elif isinstance(value, int):
            fields[name] = BoundedIntText(value or 1, min=1, max=4096, description=label)
        else:
            fields[name] = Text(value, description=label)
    button = Button(description="advise")

    def respond(_) -> None:
        shown.clear_output()
        with shown:
            try:
                table, caption = answer(**{name: field.value for name, field in fields.items()})
            except InputError as error:
                print(error)
                return
            display(HTML(table_html(table, caption)))

    button.on_click(respond)
    display(VBox([HBox(list(fields.values())[:3]), HBox([*list(fields.values())[3:], button]), shown]))
