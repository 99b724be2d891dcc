"""How good the models are: baselines on the same unseen groups, the published evaluation, its results; choices of runtimes."""
