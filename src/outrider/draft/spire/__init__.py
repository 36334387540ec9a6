"""SPIRe: a draft of a few of the target's own blocks, which attends to the target's activations."""
