"""What forward passes of a model take on this machine: timed once, kept in the cache folder."""
