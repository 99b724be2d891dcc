"""What is run.

From the ground up: ``dtypes``, ``models``, ``losses``, ``weights`` (on disk), ``medmnist_files``; ``datasets``, ``workloads``;
``training`` (the loop), ``networks`` (anything that ``advise`` can name); and ``graph``, the operators that a network runs.
``data_versions`` carries folders to and from a ``remote``, which holds ``manifests``.
"""
