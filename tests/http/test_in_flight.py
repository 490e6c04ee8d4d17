"""The requests and bytes that one process holds at once, and each project's half of them."""

from __future__ import annotations

import pytest

from app.errors import TooMuchAtOnce
from app.http.in_flight import InFlight, Reservation


def entered(in_flight: InFlight, project: str, size: int) -> Reservation:
    reservation = Reservation(in_flight)
    reservation.enter()
    reservation.join(project)
    reservation.take(size)
    return reservation


def test_a_project_gets_the_bytes_of_an_ended_request_back_while_others_of_it_run() -> None:
    in_flight = InFlight(max_requests=8, max_bytes=200)
    running = entered(in_flight, "p", 40)
    for _ in range(9):
        entered(in_flight, "p", 60).leave()
    ended = entered(in_flight, "p", 60)
    with pytest.raises(TooMuchAtOnce, match="100 bytes in flight"):
        entered(in_flight, "p", 1)
    ended.leave()
    ended.leave()
    assert in_flight.bytes == 40
    running.leave()
    assert in_flight.bytes == 0
