"""SPIRe in training: k sequential passes over blocks of positions, all blocks of a text at once."""
