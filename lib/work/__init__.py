"""What is run: data, models, the training loop, and networks by any name.

From the ground up: ``dtypes``, ``models``, ``weights`` (on disk), ``medmnist_files``, ``synthetic``
stand-ins, ``pictures`` in folders, ``datasets``, ``workloads``; ``training`` (the loop),
``distributed`` (processes that train one model together); ``user_code`` (users' networks),
``building`` (named networks, also without memory), ``networks``; ``graph`` (the operators of a
network); ``runtimes`` (what runs networks, a file each), ``run_config`` (how a network runs, in one
value). ``data_copy`` copies folders to and from URLs.
"""
