"""Operator models: features, regressors, validation, and the cost model that they make."""
