"""Is a signal sent to everybody who listens, however he connected, and to nobody else?"""

from __future__ import annotations

import pytest
from pydispatch import dispatcher
from scrapy.signalmanager import SignalManager

from scrapy_smoothpool import signals


class Sender:
    """Stands in for a crawler, which pydispatch only knows by its identity."""


@pytest.fixture
def manager():
    return SignalManager(Sender())


@pytest.mark.parametrize(
    ("signal", "sender"),
    [
        ("this", "own"),
        ("any", "own"),
        ("this", "any"),
        ("any", "any"),
    ],
)
def test_who_listens_is_heard_of(manager, signal, sender):
    heard = []

    def handler(signal):
        heard.append(signal)

    to = signals.proxy_ejected if signal == "this" else dispatcher.Any
    of = manager.sender if sender == "own" else dispatcher.Any
    assert not signals.has_receivers(manager, signals.proxy_ejected)
    dispatcher.connect(handler, to, of)
    try:
        assert signals.has_receivers(manager, signals.proxy_ejected)
        manager.send_catch_log(signals.proxy_ejected)
        assert heard == [signals.proxy_ejected]
    finally:
        dispatcher.disconnect(handler, to, of)
    assert not signals.has_receivers(manager, signals.proxy_ejected)


def test_listeners_to_others_are_none(manager):
    def handler():
        pass

    other = SignalManager(Sender())
    other.connect(handler, signals.proxy_ejected)
    manager.connect(handler, signals.proxy_restored)
    assert not signals.has_receivers(manager, signals.proxy_ejected)
    assert signals.has_receivers(manager, signals.proxy_restored)


def test_a_listener_that_is_gone_is_none(manager):
    class Listener:
        def handler(self):
            pass

    listener = Listener()
    manager.connect(listener.handler, signals.proxy_ejected)
    assert signals.has_receivers(manager, signals.proxy_ejected)
    del listener
    assert not signals.has_receivers(manager, signals.proxy_ejected)
