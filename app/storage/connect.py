"""One way to reach Redis: impatient, because everything in it can be done without."""

from __future__ import annotations

from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

CONNECT_S = 1.0
ANSWER_S = 1.0

#: after a failed call Redis is left alone for so long: nobody waits for a server that is away
AWAY_S = 2.0


def redis_client(url: str, *, tries: int = 2) -> Redis:
    """A client that tries a call `tries` times, each on a new connection, and then gives up. Raises ValueError for no URL."""
    return Redis.from_url(
        url,
        socket_connect_timeout=CONNECT_S,
        socket_timeout=ANSWER_S,
        retry=Retry(NoBackoff(), tries - 1),
        health_check_interval=15,
    )
