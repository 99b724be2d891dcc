"""Agents: the process on a machine (``agent``, ``devices``), the server's side (``fleet``), and their ``messages``."""
