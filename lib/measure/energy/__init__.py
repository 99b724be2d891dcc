"""Power and energy: what meters there are (``meters``), and the energy of named windows of work (``windows``)."""
