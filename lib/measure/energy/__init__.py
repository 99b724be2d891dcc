"""Power and energy, from the ground up.

``trace`` (what a meter gave, the energy of a window of it), ``power_log`` (logs of a board's sensor, as files), ``meters``
(what can be read here, or none and why), ``windows`` (recording beside work).
"""
