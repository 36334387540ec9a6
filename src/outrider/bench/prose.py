"""Sentences and code to build prompts of: plain, various, and about nothing real."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

PLACES = ("Ardelow", "Bramwick", "Corrin Bay", "Dunmere", "Eskdale Mill", "Farrowby", "Glenholt", "Harrowgate Fen")
NOUNS = ("basket", "ledger", "signal", "parcel", "lantern", "ticket", "meadow", "anchor", "kettle", "beacon")
_NAMES = ("Mara", "Tobias", "Inge", "Rafael", "Sunita", "Owen", "Lucia", "Bashir", "Petra", "Hideo", "Amara", "Nils")
_SURNAMES = (
    "Lindqvist",
    "Okafor",
    "Brandt",
    "Castellano",
    "Whitlow",
    "Moreau",
    "Tanaka",
    "Fairweather",
    "Novak",
    "Iyer",
)
_REASONS = (
    "repair the roof of the boathouse",
    "count the seabirds on the cliff",
    "teach an evening class in drawing",
    "buy seed potatoes and two young pear trees",
    "tune the piano in the village hall",
    "ask about the old ferry timetable",
    "photograph the mill before it is torn down",
    "deliver forty chairs for the harvest supper",
)
_REMARKS = (
    "The road was dry.",
    "It rained until noon.",
    "Nobody had expected that.",
    "The dog came along.",
    "Lunch was soup and brown bread.",
    "The key was under the second stone.",
)
_MONTHS = ("January", "March", "April", "June", "August", "September", "November", "December")
_SHAPES = (
    "On {day} {month}, {name} travelled to {place} to {reason} and stayed {nights} nights, paying {price}. {remark}",
    "{name} came to {place} on {day} {month} for {nights} nights in order to {reason}; the bill was {price}. {remark}",
    "{remark} {name}, who wanted to {reason}, was in {place} from {day} {month}, {nights} nights in all, for {price}.",
)
_CODE = """\
class {title}Store:
    def __init__(self, limit={limit}):
        self.limit = limit
        self.items = []

    def add(self, {noun}):
        if len(self.items) >= self.limit:
            raise ValueError("no room for another {noun}")
        self.items.append({noun})
        return len(self.items)

    def find(self, {key}):
        for {noun} in self.items:
            if {noun}.{key} == {key}:
                return {noun}
        return None

    def total(self):
        return sum({noun}.{value} for {noun} in self.items)
"""


@dataclass(frozen=True)
class Visit:
    """A sentence or two about somebody's stay, and the facts in it."""

    sentence: str
    fields: Mapping[str, str | int]


def visit(rng: random.Random, place: str | None = None) -> Visit:
    """A stay made up by ``rng``, in ``place`` if given."""
    fields: dict[str, str | int] = {
        "name": f"{rng.choice(_NAMES)} {rng.choice(_SURNAMES)}",
        "place": place or rng.choice(PLACES),
        "day": rng.randint(1, 28),
        "month": rng.choice(_MONTHS),
        "nights": rng.randint(2, 19),
        "price": f"{rng.randint(40, 900)} crowns",
        "reason": rng.choice(_REASONS),
    }
    return Visit(rng.choice(_SHAPES).format(**fields, remark=rng.choice(_REMARKS)), fields)


def code(rng: random.Random, noun: str) -> str:
    """A small Python class that uses ``noun`` as a variable all over."""
    key, value = rng.choice(("name", "number", "owner", "colour")), rng.choice(("weight", "price", "length", "age"))
    return _CODE.format(title=noun.title(), noun=noun, limit=rng.randint(8, 99), key=key, value=value)
