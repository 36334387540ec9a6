"""Named workloads: prompts put together from parts by a seeded generator, so that nobody has trained on them.

Each asks for another kind of text, because what a drafter can guess depends on it: "copy" repeats most of its prompt,
"json" repeats values between fixed keys, "chat" and "creative" repeat little, and "long-*" read much to answer little.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import product

from outrider.bench import prose
from outrider.bench.record import Task

VERSION = "1"
"""To be raised with any change of any prompt."""

_COUNT = 40
_LONG_COUNT = 8
_TOKENS_PER_WORD = 1.6
"""Of the long texts, in tokens of SmolLM2's tokenizer; others of its size differ little for English."""

Maker = Callable[[str, int], list[Task]]

_TOPICS = (
    "how a sailing boat can move against the wind",
    "why bread dough rises",
    "the difference between weather and climate",
    "how a library decides where a book goes",
    "why leaves change colour in autumn",
    "how to keep a bicycle chain clean",
    "what a compiler does",
    "how vaccines work",
    "why the sea is salty",
    "how a bill becomes a law",
    "what makes a good map",
    "how to store apples over winter",
    "why we dream",
    "how a lock lifts a boat",
    "what inflation means for a household",
)
_REQUESTS = (
    "Explain {} to a child of ten.",
    "In three sentences, tell me {}.",
    "Give me a numbered list of the five main points about {}.",
    "What do most people get wrong about {}?",
    "Write a short email to a colleague who asked {}.",
    "Write four quiz questions with answers on this subject: {}.",
)
_FORMS = (
    "Write the opening of a short story about {}.",
    "Write a poem of four verses about {}.",
    "Write a dialogue between two friends who disagree about {}.",
    "Write a diary entry by someone who has just seen {}.",
    "Describe {} for a travel magazine, in one long paragraph.",
    "Write a letter to a grandchild about {}.",
)
_SUBJECTS = (
    "a lighthouse that nobody remembers building",
    "the last train of the evening",
    "a market where people trade sounds",
    "an orchard in a drought",
    "a clockmaker who is always late",
    "two islands joined by a rope bridge",
    "a school for retired sailors",
    "the first snow in a desert town",
    "a map with one street too many",
    "a violin found in a well",
)
_EDITS = (
    "Repeat the following text word for word, but write {new} instead of {old} everywhere.",
    "Copy this text exactly, with one change: every {old} becomes {new}.",
    "Here is a note. Replace {old} by {new} and give back the whole note, otherwise unchanged.",
)
_RENAMES = (
    "Rewrite this Python code with the name {old} changed to {new}, and nothing else.",
    "Rename {old} to {new} in this code. Answer with the whole code.",
)


def _chat(name: str, seed: int) -> list[Task]:
    return _tasks(name, seed, (request.format(topic) for request, topic in product(_REQUESTS, _TOPICS)))


def _creative(name: str, seed: int) -> list[Task]:
    return _tasks(name, seed, (form.format(subject) for form, subject in product(_FORMS, _SUBJECTS)))


def _json(name: str, seed: int) -> list[Task]:
    rng = _rng(name, seed)
    return _tasks(name, seed, (_extraction(rng) for _ in range(_COUNT)))


def _extraction(rng: random.Random) -> str:
    visits = [prose.visit(rng) for _ in range(rng.randint(2, 4))]
    keys = ", ".join(f'"{key}"' for key in visits[0].fields)
    note = " ".join(visit.sentence for visit in visits)
    return (
        f"Extract every visit from the note as a JSON list of objects with the keys {keys}. Answer with JSON only.\n\n"
        f"Note: {note}"
    )


def _copy(name: str, seed: int) -> list[Task]:
    rng = _rng(name, seed)
    return _tasks(name, seed, ((_text_edit if i % 2 else _code_edit)(rng) for i in range(_COUNT)))


def _text_edit(rng: random.Random) -> str:
    old, new = rng.sample(prose.PLACES, 2)
    sentences = [prose.visit(rng, place=old).sentence for _ in range(rng.randint(4, 6))]
    return f"{rng.choice(_EDITS).format(old=old, new=new)}\n\n{' '.join(sentences)}"


def _code_edit(rng: random.Random) -> str:
    old, new = rng.sample(prose.NOUNS, 2)
    return f"{rng.choice(_RENAMES).format(old=old, new=new)}\n\n```python\n{prose.code(rng, old)}```"


def _long(name: str, seed: int, *, tokens: int) -> list[Task]:
    rng = _rng(name, seed)
    return _tasks(name, seed, [_report(rng, tokens) for _ in range(_LONG_COUNT)])


def _report(rng: random.Random, tokens: int) -> str:
    lines: list[str] = []
    visits: list[prose.Visit] = []
    words = 0
    while words * _TOKENS_PER_WORD < tokens:
        visits.append(prose.visit(rng))
        lines.append(f"{len(visits)}. {visits[-1].sentence}")
        words += len(lines[-1].split())
    asked = rng.randint(1, len(visits))
    question = f"Repeat entry {asked} word for word, then say in two sentences what kind of visits these were."
    return "\n".join(["These are the entries of a visitors' book.", "", *lines, "", question])


def _tasks(name: str, seed: int, prompts: Iterable[str]) -> list[Task]:
    """Up to ``_COUNT`` different prompts in an order of the seed's own."""
    chosen: Sequence[str] = list(dict.fromkeys(prompts))
    shuffled = _rng(f"{name} order", seed).sample(chosen, min(_COUNT, len(chosen)))
    return [Task(f"{name}/{i}", name, prompt) for i, prompt in enumerate(shuffled)]


def _rng(name: str, seed: int) -> random.Random:
    # A text as seed is hashed the same way in every process and version.
    return random.Random(f"outrider {name} {seed}")


MAKERS: dict[str, Maker] = {
    "chat": _chat,
    "json": _json,
    "copy": _copy,
    "creative": _creative,
    "long-1k": partial(_long, tokens=1000),
    "long-2k": partial(_long, tokens=2000),
    "long-4k": partial(_long, tokens=4000),
    # Room for an answer within the 8192 tokens that many models hold.
    "long-8k": partial(_long, tokens=7400),
}
"""From a workload's name and a seed to its tasks."""
