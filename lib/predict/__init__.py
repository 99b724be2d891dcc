"""Predict: what work would take, and why.

What a file may import, from the ground up: ``model_file`` (a saved model, checked), ``scores`` (the one scorer), ``held_out``
(rows of held-out predictions beside a model), ``analytic`` (complexity, rooflines, the
scaling from one CPU to another, checks against second sources), ``learners`` (perceptrons, boosted trees), ``operators`` (the
time of one kernel), ``networks`` (a network's operators, memory, and what composing them adds), ``power`` (watts of GEMMs,
joules of networks), ``transfer`` and ``transfer_cpu`` (GPUs and CPUs that were not measured), ``registry`` (the models at
hand), ``steps`` (a training step with its loader, copy and optimizer), ``training``, ``network_training`` (what is trained),
``advice`` (what a network's or an operator's answer is), ``questions`` (many), ``calibrate_networks``, ``calibrate`` (a model
of the user's device), ``evaluation`` (how good it all is).

How a prediction comes about: ``advice.query`` captures a network (``networks.work``), ``registry`` gives each device's model,
``operators.cost_model`` predicts each operator (``inputs`` -> a ``Part``'s regressor, range and interval), and
``networks.composition`` adds them up.
"""
