"""What learns numbers from numbers, whatever they are of: small perceptrons and boosted trees, as data that can be saved."""
