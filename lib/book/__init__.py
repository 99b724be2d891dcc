"""How it is shown: notebooks, figures, runs and the report. Stands on the ground floor alone."""
