"""A model host and its clients, over real sockets, with real models."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from app.encoders.base import EncoderSpec, ModelSources
from app.encoders.hosting import client, messages
from app.encoders.hosting.addresses import HostAddress
from app.encoders.hosting.client import ModelHosts
from app.encoders.hosting.host import ModelHost
from app.encoders.pool import EncoderPool
from app.errors import (
    EncoderChanged,
    EncoderFailed,
    EncoderUnavailable,
    InvalidInput,
    ModelsUnavailable,
)
from app.observability.metrics import MODEL_HOSTS
from app.types import InputRole, Modality
from tests.encoders.sentence_models import KIND, static, tiny
from tests.waiting import until

ROOT = Path(__file__).parents[3]
KEY = b"the key of the tests"
TEXTS = ["hello world", "number of the hello world", "a", "world of a number hello . a b"]
PROCESS = """
import signal, sys
from app.encoders.base import ModelSources
from app.encoders.hosting.addresses import HostAddress
from app.encoders.hosting.host import ModelHost
from app.encoders.pool import EncoderPool
from pathlib import Path
pool = EncoderPool(ModelSources(Path(sys.argv[1])), cores=1)
host = ModelHost(pool, HostAddress.parse(sys.argv[2]), b"the key of the tests")
host.start()
signal.pause()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("models")
    tiny(root, prompts={"query": "query : "})
    return static(root)


@pytest.fixture
def owner(folder):
    pool = EncoderPool(ModelSources(folder), cores=2)
    yield pool
    pool.close()


@pytest.fixture(params=["unix", "tcp"])
def host(request, owner, tmp_path):
    address = f"unix:{tmp_path}/m" if request.param == "unix" else "tcp://127.0.0.1:0"
    host = ModelHost(owner, HostAddress.parse(address), KEY)
    host.start()
    yield host
    host.close()


@pytest.fixture
def pool(host):
    pool = EncoderPool(hosts=ModelHosts([host.address], KEY))
    yield pool
    pool.close()


@pytest.fixture
def start(folder, tmp_path):
    """Starts a host in another process."""
    started = []
    address = HostAddress.parse(f"unix:{tmp_path}/m")

    def start() -> subprocess.Popen[bytes]:
        started.append(
            subprocess.Popen([sys.executable, "-c", PROCESS, str(folder), str(address)], cwd=ROOT)
        )
        return started[-1]

    start.address = address  # type: ignore[attr-defined]
    yield start
    for process in started:
        process.kill()
        process.wait()


def spec(model="tiny", **options):
    return EncoderSpec(KIND, model, options=options)


def hold(monkeypatch, owner, name) -> tuple[threading.Event, threading.Event]:
    """Let calls of this method wait; returns whether one has begun, and what releases them."""
    begun, release = threading.Event(), threading.Event()
    method = getattr(owner, name)

    def slowly(*arguments):
        begun.set()
        assert release.wait(30)
        return method(*arguments)

    monkeypatch.setattr(owner, name, slowly)
    return begun, release


def encode(pool, model, texts=TEXTS, role=InputRole.document, owner="me"):
    return pool.submit(model, model.prepare(texts, role), owner).future.result(timeout=60)


@pytest.mark.parametrize("name", ["tiny", "static"])  # with tokens, and with the texts themselves
@pytest.mark.parametrize("role", list(InputRole))
def test_a_hosted_model_is_the_hosts_model(pool, owner, name, role):
    hosted, own = pool.get(spec(name)), owner.get(spec(name))
    assert (hosted.identity, hosted.modality, hosted.dim) == (own.identity, Modality.text, own.dim)
    assert torch.equal(encode(pool, hosted, role=role), own.run(own.prepare(TEXTS, role)))
    sent, expected = hosted.prepare(TEXTS, role), own.prepare(TEXTS, role)
    assert [(each.tokens, each.truncated) for each in sent] == [
        (each.tokens, each.truncated) for each in expected
    ]
    assert 0 < hosted.nbytes < 100_000  # of the tokenizer alone


def test_requests_of_many_threads_and_processes_get_their_own_vectors(host, owner):
    pools = [EncoderPool(hosts=ModelHosts([host.address], KEY)) for _ in range(2)]
    own = owner.get(spec())
    texts = [" ".join(TEXTS[: 1 + n % 4]) for n in range(60)]
    expected = own.run(own.prepare(texts, InputRole.document))

    def one(number):
        pool = pools[number % 2]
        return encode(pool, pool.get(spec()), [texts[number]], owner=str(number % 5))[0]

    with ThreadPoolExecutor(12) as threads:
        vectors = torch.stack(list(threads.map(one, range(60))))
    for pool in pools:
        pool.close()
    torch.testing.assert_close(vectors, expected)


def test_inputs_are_checked_before_they_are_sent(pool):
    model = pool.get(spec())
    with pytest.raises(InvalidInput) as caught:
        model.prepare(["hello", b"an image", "\ud800"], InputRole.document)
    assert caught.value.rows == [1]


def test_the_hosts_errors_arrive(pool):
    with pytest.raises(EncoderUnavailable) as caught:
        pool.get(spec("missing"))
    assert caught.value.field == "model"


def test_variants_are_the_models_own(pool, owner):
    hosted, own = pool.get(spec()), owner.get(spec())
    found = list(hosted.variants(TEXTS))
    expected = list(own.variants(TEXTS))
    assert [each[:2] for each in found] == [each[:2] for each in expected]
    assert len(found) > 5
    for (*_, ours), (*_, theirs) in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_wrong_key_is_refused(host):
    stranger = ModelHosts([host.address], b"another key of the tests")
    with pytest.raises(ModelsUnavailable):
        stranger.call({"do": "ping"})


def test_a_model_whose_files_changed_is_loaded_again_only_when_it_is_forgotten(
    folder, tmp_path, monkeypatch
):
    own = tmp_path / "own"
    shutil.copytree(folder / "tiny", own / "tiny")
    owner = EncoderPool(ModelSources(own), cores=1)
    host = ModelHost(owner, HostAddress.parse(f"unix:{tmp_path}/m"), KEY)
    host.start()
    pool = EncoderPool(hosts=ModelHosts([host.address], KEY))
    model = pool.get(spec())
    tiny(own, prompts={"query": "another : "})
    encode(pool, model)  # the host still has the old one
    pool.forget(spec())
    changed = pool.get(spec())
    assert changed.identity.fingerprint != model.identity.fingerprint
    with pytest.raises(EncoderChanged):
        encode(pool, model)
    for each in (pool, host, owner):
        each.close()


def test_a_long_computation_is_not_taken_for_a_silent_host(host, pool, owner, monkeypatch):
    monkeypatch.setattr(messages, "SILENCE_S", 0.5)
    monkeypatch.setattr("app.encoders.hosting.host.WAIT_SIGN_S", 0.1)
    model, own = pool.get(spec()), owner.get(spec())
    begun, release = hold(monkeypatch, own, "run")
    with ThreadPoolExecutor(1) as thread:
        result = thread.submit(encode, pool, model)
        assert begun.wait(30)
        time.sleep(1.5)
        release.set()
        assert len(result.result()) == len(TEXTS)


def test_a_host_that_is_frozen_killed_and_started_again(start, monkeypatch):
    monkeypatch.setattr(messages, "SILENCE_S", 1.0)
    hosts = ModelHosts([start.address], KEY)
    pool = EncoderPool(hosts=hosts)
    process = start()
    model = pool.get(spec())  # waits for the start
    vectors = encode(pool, model)
    os.kill(process.pid, signal.SIGSTOP)
    with pytest.raises(ModelsUnavailable) as caught:
        encode(pool, model)
    assert caught.value.retry_after_s == 5
    assert not hosts.answer()
    os.kill(process.pid, signal.SIGCONT)
    assert torch.equal(encode(pool, model), vectors)
    process.kill()
    process.wait()
    with pytest.raises(ModelsUnavailable):
        encode(pool, model)
    start()
    until(hosts.answer, 60)
    assert torch.equal(encode(pool, model), vectors)  # the new host loads the model by itself
    pool.close()


def test_while_one_of_two_hosts_is_away_the_other_answers(host, tmp_path, monkeypatch):
    monkeypatch.setattr(client, "HOST_START_S", 0.0)
    away = HostAddress.parse(f"unix:{tmp_path}/away")
    pool = EncoderPool(hosts=ModelHosts([away, host.address], KEY))
    assert pool.answers()
    assert len(encode(pool, pool.get(spec()))) == len(TEXTS)
    pool.close()


def test_the_hosts_that_are_up_and_away_are_counted(owner, start, tmp_path):
    other = ModelHost(owner, HostAddress.parse(f"unix:{tmp_path}/other"), KEY)
    other.start()
    hosts = ModelHosts([start.address, other.address], KEY)

    def counted() -> tuple[float, float]:
        hosts.update_metrics()
        values = [MODEL_HOSTS.labels(state)._value.get() for state in ("up", "away")]
        return values[0], values[1]

    assert counted() == (1, 1)  # the other one has not started
    process = start()
    until(lambda: counted() == (2, 0), 60)
    os.kill(process.pid, signal.SIGSTOP)
    assert counted() == (1, 1)
    os.kill(process.pid, signal.SIGCONT)
    until(lambda: counted() == (2, 0), 60)
    process.kill()
    process.wait()
    assert counted() == (1, 1)
    assert hosts.answer()
    for each in (hosts, other):
        each.close()


def test_a_client_that_sends_nonsense_harms_no_other(host, pool):
    for data in (b"", b"\x00" * 64, b"\xff" * 4096, b"GET / HTTP/1.1\r\n\r\n"):
        with host.address.connect() as connection:
            connection.sendall(data)
    assert pool.answers()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_images_are_decoded_by_the_client_and_encoded_by_the_host(tmp_path, dtype):
    pytest.importorskip("timm")
    from tests.encoders.timm_models import IMAGES, save_models

    save_models(tmp_path)
    owner = EncoderPool(ModelSources(tmp_path), cores=1)
    host = ModelHost(owner, HostAddress.parse(f"unix:{tmp_path}/m"), KEY)
    host.start()
    pool = EncoderPool(hosts=ModelHosts([host.address], KEY))

    for name in ("vit", "grey", "pair"):
        image_spec = EncoderSpec("timm", name, options={"dtype": dtype})
        hosted, own = pool.get(image_spec), owner.get(image_spec)
        assert hosted.modality is Modality.image
        expected = own.run(own.prepare(IMAGES, InputRole.document))
        assert torch.equal(encode(pool, hosted, IMAGES), expected)
    with pytest.raises(InvalidInput):
        hosted.prepare(["a text"], InputRole.document)
    for each in (pool, host, owner):
        each.close()


def test_connections_that_say_nothing_leave_room_for_others(host, pool):
    silent = [host.address.connect() for _ in range(100)]
    until(pool.answers, 30)  # at the latest when the host has closed them
    for each in silent:
        each.close()


def test_the_file_at_a_sockets_path_is_replaced_only_if_it_is_an_unused_socket(tmp_path):
    address = HostAddress.parse(f"unix:{tmp_path}/m")
    Path(address.path).write_text("mine")
    with pytest.raises(FileExistsError):
        address.listen(1)
    Path(address.path).unlink()
    with address.listen(1), pytest.raises(OSError, match="another process listens"):
        address.listen(1)
    address.listen(1).close()


def test_an_error_of_the_hosts_disk_is_logged_there_and_is_none_of_the_connection(
    host, pool, owner, monkeypatch, caplog
):
    def fail(*_):
        raise TimeoutError("the disk")

    monkeypatch.setattr(owner, "get", fail)
    with pytest.raises(EncoderFailed, match="TimeoutError"):
        pool.get(spec())
    assert "the disk" in caplog.text
    assert pool.answers()


def test_a_load_of_one_model_leaves_a_lane_for_others(host, pool, owner, monkeypatch):
    ready, waiting = pool.get(spec()), pool.get(spec("static"))
    owner.forget(spec("static"))
    begun, release = hold(monkeypatch, owner, "get")
    tasks = [
        pool.submit(waiting, waiting.prepare(TEXTS, InputRole.document), "me") for _ in range(8)
    ]
    assert begun.wait(30)
    assert len(encode(pool, ready)) == len(TEXTS)
    release.set()
    for task in tasks:
        task.future.result(timeout=60)


def test_a_host_without_the_model_is_passed_over_and_named_once(host, tmp_path, caplog):
    empty = EncoderPool(ModelSources(tmp_path), cores=1)
    without = ModelHost(empty, HostAddress.parse(f"unix:{tmp_path}/empty"), KEY)
    without.start()
    pool = EncoderPool(hosts=ModelHosts([without.address, host.address], KEY))
    model = pool.get(spec())
    for number in range(12):
        assert len(encode(pool, model, TEXTS[: 1 + number % 4])) == 1 + number % 4
    refusals = [each for each in caplog.messages if "refuses a model" in each]
    assert len(refusals) == 1
    assert str(without.address) in refusals[0]
    with pytest.raises(EncoderUnavailable):
        pool.get(spec("missing"))
    for each in (pool, without, empty):
        each.close()


def test_a_host_that_is_stopped_answers_the_requests_that_it_has(host, pool, owner, monkeypatch):
    model, own = pool.get(spec()), owner.get(spec())
    begun, release = hold(monkeypatch, own, "run")
    with ThreadPoolExecutor(2) as threads:
        result = threads.submit(encode, pool, model)
        assert begun.wait(30)
        closed = threads.submit(host.close)
        until(lambda: not pool.answers())
        assert not closed.done()
        release.set()
        assert len(result.result()) == len(TEXTS)
        closed.result(timeout=30)
