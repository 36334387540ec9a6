"""One folder a method, with the same files: config, model, loss."""
