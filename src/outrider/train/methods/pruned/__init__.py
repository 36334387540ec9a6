"""Some of the target's blocks as a language model of their own: the article's draft without target activations."""
