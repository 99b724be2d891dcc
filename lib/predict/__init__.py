"""Predict: what work would take, and why.

What a file may import, from the ground up: ``model_file`` (a saved model, checked), ``scaling`` (from one CPU to another),
``operators`` (the time of one kernel), ``analytic`` (complexity, rooflines, checks against second sources), ``networks`` (a
network's operators, memory, and what composing them adds), ``power`` (watts of kernels, joules of networks), ``transfer`` and
``transfer_cpu`` (GPUs and CPUs that were not measured), ``registry`` (the models at hand), ``training``,
``network_training``, ``advise``, ``suggestions``, ``calibrate`` (what a user asks for), ``evaluation`` (how good it all is).

How a prediction comes about: ``advise`` captures a network (``networks.work``), ``registry`` gives each device's model,
``operators.cost_model`` predicts each operator (``inputs`` -> a ``Part``'s regressor, range and interval), and
``networks.composition`` adds them up.
"""
