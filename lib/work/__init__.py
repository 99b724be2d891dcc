"""What is run.

From the ground up: ``dtypes``, ``models``, ``losses``, ``weights`` (on disk), ``medmnist_files``; ``pictures`` (in
folders), ``datasets``, ``workloads``; ``training`` (the loop), ``distributed`` (processes that train one model together);
``user_code`` (users' code), ``building`` (named networks, also without memory), ``networks`` (anything that ``advise``
can name); ``graph``, the operators of a network; ``runtimes`` (what runs networks, a file each), ``run_config`` (how a
network runs, in one value). ``data_copy`` copies folders to and from URLs.
"""
