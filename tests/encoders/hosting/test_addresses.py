"""Addresses of model hosts."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from app.encoders.hosting.addresses import HostAddress


@pytest.mark.parametrize(
    "text",
    [
        "unix:/run/models.sock",
        "unix:models.sock",
        "tcp://gpu-1:8091",
        "tcp://10.0.0.1:1",
        "tcp://[::1]:65535",
    ],
)
def test_an_address_is_written_as_it_was_read(text):
    assert str(HostAddress.parse(f" {text} ")) == text


@pytest.mark.parametrize(
    "text",
    ["", "unix:", "gpu:8091", "tcp://gpu", "tcp://:8091", "tcp://gpu:65536", "http://gpu:8091"],
)
def test_other_text_is_refused_with_both_forms(text):
    with pytest.raises(ValueError, match=r"unix:/path/of/a\.sock or tcp://name:port"):
        HostAddress.parse(text)


def test_each_device_has_the_next_port_or_another_path():
    tcp, unix = HostAddress.parse("tcp://gpu:8091"), HostAddress.parse("unix:/run/m")
    assert [str(tcp.next(n)) for n in (0, 2)] == ["tcp://gpu:8091", "tcp://gpu:8093"]
    assert [str(unix.next(n)) for n in (0, 2)] == ["unix:/run/m", "unix:/run/m.2"]


def test_only_this_user_may_connect_to_a_socket_in_a_folder_which_replaces_that_of_a_killed_process(
    tmp_path,
):
    address = HostAddress.parse(f"unix:{tmp_path}/m")
    for _ in range(2):  # the first socket's file stays
        address.listen(1).close()
    assert stat.S_IMODE(Path(address.path).stat().st_mode) == 0o600


def test_port_0_takes_a_free_one():
    address = HostAddress.parse("tcp://127.0.0.1:0")
    with address.listen(1) as listener:
        bound = address.bound(listener)
        assert bound.port > 0
        bound.connect().close()
