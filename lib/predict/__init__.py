"""Predict: what work would take, and why.

The files, from the ground up; each imports only from those before it. ``model_file`` (a saved model, checked), ``scores``
(the one scorer), ``held_out`` (rows of held-out predictions beside a model), ``boards`` (how far boards of others lie apart),
``analytic`` (complexity, rooflines), ``operators`` (the time of one kernel: rates and trees), ``networks``
(operators of a network and their sum, gains, runtimes, memory), ``parallel`` (several GPUs), ``gpu`` (whole networks on
GPUs), ``power`` (watts, joules), ``transfer`` and ``transfer_cpu`` (devices that were not measured), ``registry`` (the models
at hand), ``steps`` (a training step), ``training``, ``network_training``, ``gain_training``, ``runtime_training`` (training of
models), ``trust`` (held-out errors of an answer), ``advice`` (answers to one question or a table), ``calibrate_networks`` and
``calibrate`` (a model of the user's CPU), ``evaluation`` (how good it all is), ``gpu_training`` (training and calibration of
the model of GPUs).

How a prediction comes about: ``advice.query`` captures a network, ``registry`` gives each device's models, and
``Answer.estimate`` takes the model of GPUs (``gpu``), or on a CPU a learned gain or runtime, or a sum of operators
(``networks.composition``). See docs/architecture.md.
"""
