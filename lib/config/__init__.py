"""Parameters of notebooks and the definitions in ``params/*.yaml``, typed and checked."""
