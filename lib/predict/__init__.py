"""Predict: what work would take, and why.

What a file may import, from the ground up: ``model_file`` (a saved model, checked), ``analytic`` (complexity, rooflines, the
scaling from one CPU to another, checks against second sources), ``operators`` (the time of one kernel), ``networks`` (a
network's operators, memory, and what composing them adds), ``power`` (watts of kernels, joules of networks), ``transfer`` and
``transfer_cpu`` (GPUs and CPUs that were not measured), ``registry`` (the models at hand), ``steps`` (a training step with its
loader, copy and optimizer), ``training``, ``network_training`` (what is trained), ``advise``, ``advise_operator``,
``advise_text``, ``suggestions``, ``calibrate_networks``, ``calibrate`` (what a user asks for), ``evaluation`` (how good it all
is).

How a prediction comes about: ``advise`` captures a network (``networks.work``), ``registry`` gives each device's model,
``operators.cost_model`` predicts each operator (``inputs`` -> a ``Part``'s regressor, range and interval), and
``networks.composition`` adds them up.
"""
