"""Small calls that people forget: the gradient norm and the loss."""
