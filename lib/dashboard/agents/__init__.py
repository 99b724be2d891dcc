"""Agents: the process on a machine (``agent``), and the workers on its slots as the server has them (``workers``)."""
