"""The queue carries job ids to the worker. Embedded: dramatiq's in-memory broker, in the same process as the API."""

from __future__ import annotations

from dramatiq import Broker
from dramatiq.brokers.stub import StubBroker


def memory_broker() -> Broker:
    """A broker without a server and without retries of its own: job truth is the SQL row."""
    broker = StubBroker(middleware=[])
    broker.emit_after("process_boot")
    return broker
