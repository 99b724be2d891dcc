"""The model of GPUs: rows of kernels, the form of their time, the levels of its weights, their fit, and answers."""
