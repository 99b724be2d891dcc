"""Published measurements beyond operators: ``wheel`` where a package's data lie, ``attention_power`` watts of attention."""
