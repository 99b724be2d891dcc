"""Agents: the process on a machine (``agent``), its calls (``client``); the server's side of them (``workers``, ``fleet``)."""
