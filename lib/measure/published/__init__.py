"""Published measurements beyond operators: ``wheel`` where a package's data lie, ``power`` and ``attention_power`` watts."""
