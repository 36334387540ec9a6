"""Other libraries are silenced for our calls only, and their errors fit on one line."""

from __future__ import annotations

import warnings

import pytest
from transformers.utils import logging

from outrider.models.quiet import first_line, quiet_transformers


def test_silent_inside_and_as_before_outside() -> None:
    before = logging.get_verbosity()
    logging.set_verbosity_info()
    try:
        with pytest.raises(RuntimeError, match="inside"), quiet_transformers():
            assert logging.get_verbosity() == logging.ERROR
            assert not logging.is_progress_bar_enabled()
            warnings.warn("not seen", stacklevel=1)
            raise RuntimeError("inside")
        assert logging.get_verbosity() == logging.INFO
        assert logging.is_progress_bar_enabled()
    finally:
        logging.set_verbosity(before)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("one.", "one"),
        ("\n first \n\nsecond", "first"),
        ("in field 'x':\n    ValueError: 3 is odd", "in field 'x': ValueError: 3 is odd"),
        ("", "RuntimeError"),
        ("alone:", "alone"),
    ],
)
def test_first_line(message: str, expected: str) -> None:
    assert first_line(RuntimeError(message)) == expected
