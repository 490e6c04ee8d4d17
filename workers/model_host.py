"""The processes that own the models of a device and run them for API processes."""

from __future__ import annotations

import logging
import os
import signal
import threading

from app.encoders.hosting.addresses import HostAddress
from app.encoders.hosting.host import ModelHost
from app.encoders.pool import EncoderPool
from app.observability import logs
from app.services.serving.translation_devices import TranslateOperation
from app.settings import Settings
from app.wiring import encode_key, make_encoder_pool
from workers.supervisor import end_with_parent

#: how often a model host checks whether its device has failed
DEVICE_CHECK_S = 0.5

log = logging.getLogger("anchorage.encoders")


def start_host(settings: Settings, pool: EncoderPool, number: int) -> ModelHost | None:
    """Start the host of the device with this number, if the settings name an address for it.

    Raises ValueError for an address that is not one, and OSError if it cannot be used.
    """
    if settings.encode_listen is None:
        return None
    address = HostAddress.parse(settings.encode_listen).next(number)
    operations = {"translate": TranslateOperation(pool.device)}
    host = ModelHost(pool, address, encode_key(settings, [address]), operations)
    host.start()
    log.info("process %d runs models for other processes at %s", os.getpid(), host.address)
    return host


def run_host(settings: Settings, device: str, number: int) -> None:
    """Run a process that only runs models, until SIGTERM or until its parent ends."""
    logs.configure(settings.log_format)
    # A terminal sends SIGINT to all processes, and the parent passes it on as SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    end_with_parent()
    pool = make_encoder_pool(settings, device)
    host = start_host(settings, pool, number)
    while not pool.broken and not ended.wait(DEVICE_CHECK_S):
        pass
    if pool.broken:
        log.error(
            "the device %s has failed: model host %d ends to be restarted", device, os.getpid()
        )
        logging.shutdown()
        os._exit(1)  # on a broken device, closing could fail or never end
    if host is not None:
        host.close()
    pool.close()
