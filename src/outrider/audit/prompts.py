"""Prompts of our own, whose answers repeat their words, so that a drafter of any kind has something to propose."""

from __future__ import annotations

from typing import Final

BUILT_IN: Final = (
    "The colours are red, green, blue.\nThe colours are red, green, blue.\nThe colours are",
    "Monday: rain. Tuesday: sun. Wednesday: rain. Thursday: sun. Friday:",
    "def area(width, height):\n    return width * height\n\ndef volume(width, height, depth):\n    return",
    "The cat sat on the mat. The dog sat on the log. The frog sat on the",
    "Q: What is 2 + 3?\nA: 5\nQ: What is 4 + 5?\nA: 9\nQ: What is 6 + 1?\nA:",
    "One for all and all for one, they said. One for",
    '{"name": "Ada", "age": 36}\n{"name": "Alan", "age": 41}\n{"name": "Grace", "age":',
    "She opened the door and looked at the sea. He opened the window and looked at the",
)
