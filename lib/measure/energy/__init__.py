"""Power and energy: ``meters`` to read, ``windows`` sampled beside work, ``power_log`` files."""
