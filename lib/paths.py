"""Where everything lies, anchored on this file and never on the working directory.

``LIB_OUTPUT`` moves all that is measured or built (a scratch disk, a test) away from the checkout.
"""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
PARAMS = ROOT / "params"
REFERENCE = ROOT / "data" / "reference"
TEMPLATE = ROOT / "report" / "template"

OUTPUT = Path(os.environ.get("LIB_OUTPUT") or ROOT).resolve()
DATA = OUTPUT / "data"
PROFILES = DATA / "profiles"
RUNS = DATA / "runs"
CEILINGS = DATA / "ceilings"
SWEEPS = DATA / "sweeps"
COMPLEXITY = DATA / "complexity"
POINTS = DATA / "points"
MATRIX = DATA / "matrix"
NETWORKS = DATA / "networks"
IMPORTED = DATA / "imported"
MODELS = DATA / "models"
TRAINING = DATA / "training"
MEDMNIST = DATA / "medmnist"
FETCHED = ROOT / "data" / "medmnist"  # where files are found too, wherever LIB_OUTPUT leads
SYNTHETIC = DATA / "synthetic"
FIGURES = OUTPUT / "figures"
REPORT = OUTPUT / "report"
EXECUTED = REPORT / "executed"
