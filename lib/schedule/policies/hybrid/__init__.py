"""The hybrid policy: plan what is known, bind late, learn from what finishes, move stragglers."""
