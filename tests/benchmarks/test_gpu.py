"""The page on GPUs quotes its report, and the benchmark finds what it looks for."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import methods, page, products
from benchmarks.gpu.device import Device, choose, ratio
from benchmarks.gpu.report import Table, number
from benchmarks.gpu.run import Run
from benchmarks.gpu.servers import Target, load

ROOT = Path(__file__).parents[2]


def test_the_page_quotes_the_report() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    report = json.loads((ROOT / "benchmarks/results/gpu.json").read_text(encoding="utf-8"))
    assert page.filled(text, report) == text
    assert text.count("<!-- cpu -->") == text.count("<!-- cuda -->") == 1


def test_a_deviation_is_relative_to_the_largest_number() -> None:
    one = torch.tensor([1.0, -4.0])
    assert methods.deviation([one], [one + torch.tensor([0.0, 0.4])]) == pytest.approx(0.1)
    assert methods.deviation([torch.tensor([1, 2])], [torch.tensor([1, 3])]) == 0.5


def test_another_shape_or_another_nan_is_a_whole_deviation() -> None:
    one = torch.tensor([1.0, torch.nan])
    assert methods.deviation([one], [one]) == 0
    assert methods.deviation([one], [one.flip(0)]) == 1
    assert methods.deviation([one], [one[:1]]) == 1
    assert methods.deviation([one], []) == 1


def test_a_computation_that_raises_is_listed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = iter([None, RuntimeError("two devices\nand more")])

    def second_fails(sides: methods.Sides) -> float:
        if (error := next(calls)) is not None:
            raise error
        return 1.0

    same = {"same": lambda sides: sides[2]}
    monkeypatch.setattr(methods, "computations", lambda: {**same, "broken": second_fails})
    found = methods.measure(Run(Device("cpu"), tmp_path))
    assert found["deviations"] == {"same": 0.0}
    assert found["crashes"] == {"broken": "RuntimeError: two devices"}


def test_apply_is_compared_with_a_product_of_the_same_shapes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(products.SIZES, "cpu", (512, 200, 2))
    found = products.measure(Run(Device("cpu"), tmp_path))
    row = found["precisions"]["float32"]
    assert row["error"] == 0
    assert row["ratio"] > 0
    assert "TF32" not in found["precisions"]
    assert [table.columns[0] for table in products.tables(found)] == ["512 x 768 -> 768", "memory"]


def test_a_ratio_is_the_median_of_the_rounds() -> None:
    assert ratio([2.0, 3.0, 100.0], [1.0, 1.0, 1.0]) == 3


def test_numbers_of_every_size_are_readable() -> None:
    shown = [number(value) for value in (None, 0.0, 0.01234, 12.34, 999.96, 12345.6, 1e-7)]
    assert shown == ["-", "0", "0.0123", "12.3", "1,000", "12,346", "1.0e-07"]


def test_a_table_is_markdown_of_the_same_cells() -> None:
    table = Table("title", ["a", "b"], [["x", "1"]])
    assert table.markdown() == "| a | b |\n| --- | --- |\n| x | 1 |"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_missing_gpu_is_named() -> None:
    assert choose("auto") == Device("cpu")
    with pytest.raises(ValueError, match="no GPU"):
        choose("cuda")


class Counting(threading.Thread):
    """A server that counts the requests with a body of two bytes, and answers each the same."""

    def __init__(self, status: str) -> None:
        super().__init__(daemon=True)
        self.status, self.bodies = status, list[bytes]()
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]

    def run(self) -> None:
        while True:
            try:
                line, _ = self.listening.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(line,), daemon=True).start()

    def _answer(self, line: socket.socket) -> None:
        status = "200 OK"  # of the first request, which only opens the connection
        data = b""
        with line, suppress(ConnectionError):
            while piece := line.recv(2**16):
                data += piece
                head, end, body = data.partition(b"\r\n\r\n")
                wanted = 2 if head.startswith(b"POST") else 0
                if not end or len(body) < wanted:
                    continue
                if wanted:
                    self.bodies.append(body[:wanted])
                    status = self.status
                line.sendall(f"HTTP/1.1 {status}\r\nContent-Length: 3\r\n\r\nabc".encode())
                data = body[wanted:]


def test_a_load_sends_every_request_once() -> None:
    server = Counting("200 OK")
    server.start()
    target = Target("127.0.0.1", server.port, "/v1")
    requests = [target.request("/embeddings", f"{row:02}".encode()) for row in range(30)]
    found = load(target, requests, clients=5, processes=2)
    server.listening.close()
    assert sorted(server.bodies) == [f"{row:02}".encode() for row in range(30)]
    assert found.requests == 30
    assert found.per_s > 0


def test_a_load_fails_at_the_first_error() -> None:
    server = Counting("503 Service Unavailable")
    server.start()
    target = Target("127.0.0.1", server.port)
    with pytest.raises(RuntimeError, match="503 Service Unavailable"):
        load(target, [target.request("/x", b"00")] * 4, clients=2)
    server.listening.close()


def test_the_command_names_a_wrong_rival() -> None:
    command = [sys.executable, "-m", "benchmarks.gpu", "--rival", "localhost:80"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 2
    assert "NAME=http://HOST:PORT/PATH" in done.stderr
