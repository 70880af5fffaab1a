"""DSpark: a small network that drafts a block of tokens in one pass, from features of the target itself."""
