"""What ``08_layer_power`` shows."""
