"""What is run.

From the ground up: ``dtypes``, ``models``, ``medmnist_files``; ``datasets``, ``workloads`` (with the loss of each);
``training`` (the loop), ``networks`` (anything that ``advise`` can name); and ``graph``, the operators that a network runs.
``data_versions`` carries folders to and from a ``remote``.
"""
