"""Fakes and contract suites for trying out drafters, runners and controllers of your own.

Subclass ``RunnerContract`` or ``DrafterContract`` in a test file, give it a factory, and pytest runs the suite.
"""

from outrider.testing.audit import audit
from outrider.testing.control import ScheduledController
from outrider.testing.drafter_contract import DrafterContract
from outrider.testing.drafters import AdversarialDrafter, RandomDrafter, ScriptedDrafter
from outrider.testing.runner_contract import RunnerContract
from outrider.testing.sequences import StubSequence
from outrider.testing.tokenizer import ByteTokenizer

__all__ = [
    "AdversarialDrafter",
    "ByteTokenizer",
    "DrafterContract",
    "RandomDrafter",
    "RunnerContract",
    "ScheduledController",
    "ScriptedDrafter",
    "StubSequence",
    "audit",
]
