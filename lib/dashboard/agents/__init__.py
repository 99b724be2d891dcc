"""Agents: the process on a machine (``agent``), its calls (``client``), and the server's side: ``workers``, and their ``fleet``."""
