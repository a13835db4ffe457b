"""Is a debug line only made where somebody sees it?"""

from __future__ import annotations

import logging

import pytest

from scrapy_smoothpool.logs import any_handler_for


@pytest.fixture
def loggers():
    """A logger of a package and one within it, apart from all others."""
    root, child = logging.Logger("package"), logging.Logger("package.module")
    child.parent = root
    return root, child


def handler(level):
    made = logging.NullHandler()
    made.setLevel(level)
    return made


def test_nobody_listens(loggers):
    assert not any_handler_for(loggers[1], logging.DEBUG)


@pytest.mark.parametrize("place", [0, 1])
def test_who_listens_here_or_above_is_found(loggers, place):
    loggers[place].addHandler(handler(logging.INFO))
    assert not any_handler_for(loggers[1], logging.DEBUG)
    assert any_handler_for(loggers[1], logging.INFO)
    loggers[place].addHandler(handler(logging.DEBUG))
    assert any_handler_for(loggers[1], logging.DEBUG)


def test_a_logger_that_lets_nothing_through_has_none(loggers):
    loggers[1].addHandler(handler(logging.DEBUG))
    loggers[1].setLevel(logging.INFO)
    assert not any_handler_for(loggers[1], logging.DEBUG)


def test_handlers_above_one_that_does_not_propagate_do_not_count(loggers):
    loggers[0].addHandler(handler(logging.DEBUG))
    loggers[1].propagate = False
    assert not any_handler_for(loggers[1], logging.DEBUG)
