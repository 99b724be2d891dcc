"""Which answer can be trusted: errors on what was held out (``held_out``), and which are quoted of an answer (``quote``)."""
