"""The article's vanilla draft: a plain language model an eighth of the target's size, trained from scratch."""
