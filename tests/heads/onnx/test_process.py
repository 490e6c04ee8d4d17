"""The processes that run ONNX heads: their ends, and the requests that wait for them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch

from app.errors import HeadTooSlow, InvalidHead, Overloaded, TooMuchAtOnce
from app.heads.onnx import process as onnx_process
from app.heads.onnx.head import OnnxHead, load_onnx, make_onnx
from app.heads.onnx.process import OnnxProcess, OnnxRunner, OwnerQueue

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from onnx import helper, numpy_helper, parser  # after the check that it is installed

DIM = 16
ONE = torch.ones(1, DIM)


def file(nodes: int = 1) -> bytes:
    """An ONNX file whose nodes each multiply by one."""
    body = " ".join(f"c{i + 1} = MatMul(c{i}, w)" for i in range(nodes))
    graph = parser.parse_graph(f"g (float[n,16] c0) => (float[n,16] c{nodes}) {{ {body} }}")
    graph.initializer.append(numpy_helper.from_array(np.eye(DIM, dtype=np.float32), "w"))
    return helper.make_model(
        graph, ir_version=9, opset_imports=[helper.make_opsetid("", 18)]
    ).SerializeToString()


def make_head(data: bytes, runner: OnnxRunner) -> OnnxHead:
    """Try a client's file and return its head."""
    return make_onnx(data, dim=DIM, runner=runner, owner="")


@pytest.fixture(scope="module")
def head(runner: OnnxRunner) -> OnnxHead:
    return make_head(file(), runner)


def reload_head(head: OnnxHead, runner: OnnxRunner) -> OnnxHead:
    """Load a head from the stored tensors of another."""
    return load_onnx(head.tensors()["onnx"].numpy().tobytes(), dim=DIM, runner=runner, owner="")


def test_a_slow_head_is_stopped_and_works_again_afterwards(runner):
    slow = make_head(file(200), runner)
    vectors = torch.randn(300_000, DIM)
    with pytest.raises(HeadTooSlow, match=r"more than 0\.05 s"):
        slow.run(vectors, seconds=0.05)
    torch.testing.assert_close(slow.run(vectors[:100]), vectors[:100])


def test_a_killed_process_fails_no_request(head, runner):
    expected = head.run(ONE)
    for _ in range(2):
        killed = runner._process._child
        killed.kill()
        torch.testing.assert_close(head.run(ONE), expected)
        assert killed.poll() == -signal.SIGKILL


def test_a_process_that_does_not_answer_is_replaced(head, runner, monkeypatch):
    expected = head.run(ONE)
    stuck = runner._process._child
    os.kill(stuck.pid, signal.SIGSTOP)
    monkeypatch.setattr(onnx_process, "ONNX_RUN_S", 0.3)
    with pytest.raises(HeadTooSlow) as caught:
        head.run(ONE)
    assert caught.value.field == "head"
    assert stuck.poll() == -signal.SIGKILL
    monkeypatch.undo()
    torch.testing.assert_close(head.run(ONE), expected)


def test_a_head_whose_process_dies_twice_is_rejected(head, monkeypatch):
    monkeypatch.setattr(onnx_process, "ONNX_RUN_BYTES", 2**26)  # too little to start
    dying = OnnxRunner()
    with pytest.raises(InvalidHead, match="crashes onnxruntime"):
        reload_head(head, dying)
    monkeypatch.undo()
    assert reload_head(head, dying).outputs == DIM
    dying.close()


def test_a_crash_in_a_trial_rejects_the_file(runner, monkeypatch):
    monkeypatch.setattr(onnx_process, "ONNX_TRIAL_BYTES", 2**26)  # too little to start
    with pytest.raises(InvalidHead, match="crashes onnxruntime"):
        make_head(file(), runner)


def test_the_process_opens_no_file_and_knows_no_secret(monkeypatch):
    monkeypatch.setenv("ANCHORAGE_DATABASE_URL", "postgresql://secret")
    process = OnnxProcess(onnx_process.ONNX_RUN_BYTES)
    try:
        process.ask({"op": "run", "key": "none", "rows": 1}, b"\0" * 4, seconds=10.0, field="head")
        here = Path(f"/proc/{process._child.pid}")
        assert b"secret" not in (here / "environ").read_bytes()
        files = next(
            line
            for line in (here / "limits").read_text().splitlines()
            if line.startswith("Max open files")
        )
        assert int(files.split()[3]) <= 8
        assert (here / "oom_score_adj").read_text().strip() == "1000"
    finally:
        process.close()


ORPHAN = """
import sys, torch
from app.heads.onnx.head import make_onnx
from app.heads.onnx.process import OnnxRunner
runner = OnnxRunner()
head = make_onnx(open(sys.argv[1], "rb").read(), dim=16, runner=runner, owner="")
head.run(torch.ones(1, 16))
print(runner._process._child.pid, flush=True)
while True:
    head.run(torch.ones(100_000, 16))
"""


def test_the_process_ends_when_the_service_is_killed(tmp_path):
    (tmp_path / "slow.onnx").write_bytes(file(200))
    command = [sys.executable, "-c", ORPHAN, str(tmp_path / "slow.onnx")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
        child = Path(f"/proc/{int(service.stdout.readline())}")
        assert child.exists()
        service.kill()
    deadline = time.monotonic() + 20
    while child.exists() and "Z" not in child.joinpath("stat").read_text().split(")")[1][:3]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_closed_runner_refuses_and_leaves_no_process(head):
    closing = OnnxRunner()
    mine = reload_head(head, closing)
    child = closing._process._child
    closing.close()
    assert child.returncode is not None
    with pytest.raises(Overloaded, match="stopping"):
        mine.run(ONE)


def test_files_and_heads_wait_for_a_turn(head, runner, monkeypatch):
    for name, use in (
        ("_trials", lambda: make_head(file(), runner)),
        ("_runs", lambda: head.run(ONE)),
    ):
        line = OwnerQueue("wait", at_once=1, most=5, share=5, wait_s=0.01)
        monkeypatch.setattr(runner, name, line)
        use()
        with line.turn("another"), pytest.raises(Overloaded, match="waited"):
            use()


def test_owners_take_turns_and_have_a_share_of_the_queue():
    order, threads = [], []
    line = OwnerQueue("wait", at_once=1, most=5, share=3, wait_s=30.0)

    def wait(owner: str) -> None:
        with line.turn(owner):
            order.append(owner)

    def waiting() -> int:
        return sum(map(len, line._waiting.values()))

    with line.turn("first"):
        for owner in ["a", "a", "a", "b", "c"]:
            before = waiting()
            threads.append(Thread(target=wait, args=(owner,)))
            threads[-1].start()
            while waiting() == before:
                time.sleep(0.001)
        with pytest.raises(TooMuchAtOnce), line.turn("a"):
            pass
        with pytest.raises(Overloaded), line.turn("d"):
            pass
    for thread in threads:
        thread.join()
    assert order == ["a", "b", "c", "a", "a"]
    assert waiting() == 0


def test_a_request_that_waits_too_long_leaves_the_queue():
    line = OwnerQueue("wait", at_once=2, most=5, share=5, wait_s=0.01)
    with line.turn("a"), line.turn("b"), pytest.raises(Overloaded, match="waited"), line.turn("c"):
        pass
    with line.turn("c"), line.turn("c"):
        assert not line._waiting


def test_the_server_is_overloaded_if_no_process_starts(runner, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(Overloaded, match="cannot start"):
        make_head(file(), runner)
