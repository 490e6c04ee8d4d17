"""Which service a command talks to, and what it says where there is none."""

from __future__ import annotations

import signal
import socket
import threading
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from app.cli.commands import cli
from app.cli.service import Refused, explain
from app.settings import Settings
from scripts.servers import serve
from tests.cli.conftest import running
from tests.cli.test_commands import said


def call(*arguments: str, **settings: object) -> Result:
    given = {f"ANCHORAGE_{name.upper()}": str(value) for name, value in settings.items()}
    return CliRunner().invoke(cli, list(arguments), env={"COLUMNS": "200", **given})


def test_without_a_service_a_command_starts_its_own_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("I lost my card.\nWhere is my money?\nI forgot my PIN.\n")
    given = {"data_dir": tmp_path / "data", "port": 9}
    added = call("encoders", "add", "mini", "--model", "all-MiniLM-L6-v2", **given)
    assert added.exit_code == 0, added.output
    assert "mini: vectors of 384 numbers, sentence-transformers." in added.stdout
    assert said(added.stderr).startswith(
        "No service runs at http://127.0.0.1:9; this command starts its own. Run `anchorage serve` "
        "to avoid the wait."
    )
    with running(Settings(data_dir=tmp_path / "data")):
        call("encoders", "add", "mini2", "--model", "all-MiniLM-L6-v2", **given)
        files = ("--inputs", str(tmp_path / "texts.txt"), "--encoders", "mini,mini2")
        made = call("anchors", "add", "faq", *files, **given)
        assert made.stdout.startswith("faq: 3 anchors by "), made.output
        assert "WARNING (too-few-anchors, mini): 3 anchors span" in made.stderr
        np.save(tmp_path / "old.npy", np.eye(3))
        call("encoders", "add", "old", "--dim", "3", **given)
        both = ("--inputs", files[1], "--encoders", "mini", "--embeddings")
        made = call("anchors", "add", "both", *both, f"old={tmp_path / 'old.npy'}", **given)
        assert made.stdout.startswith("both: 3 anchors by old, mini."), made.output
        np.save(tmp_path / "old.npy", np.full((3, 3), np.nan))
        wrong = call("anchors", "add", "nan", *both, f"old={tmp_path / 'old.npy'}", **given)
        assert "Rows, from 0: 0, 1, 2." in said(wrong.stderr)
    assert not list(Path(tmp_path / "data").glob("socket*"))


def test_the_service_of_the_data_folder_is_found_at_any_port(tmp_path: Path) -> None:
    with serve(data_dir=tmp_path) as server:
        port = server.port
        added = call("encoders", "add", "own", "--dim", "3", data_dir=tmp_path)
        assert (added.exit_code, added.stderr) == (0, "")
        named = call("encoders", "list", "--url", f"http://127.0.0.1:{port}", "--json")
        assert '"own"' in named.stdout
        other = call("encoders", "list", data_dir=tmp_path / "other", port=port)
        assert f"pass --url http://127.0.0.1:{port} to use it" in said(other.stderr)
        assert "own" not in other.stdout
        busy = call("serve", data_dir=tmp_path / "other", port=port)
        assert f"Another Anchorage service uses port {port}" in said(busy.stderr)
    gone = call("encoders", "list", url=f"http://127.0.0.1:{port}")
    assert gone.exit_code == 2
    assert f"No service answers at http://127.0.0.1:{port}" in said(gone.stderr)


def test_an_address_that_is_none_and_what_is_no_service_are_refused() -> None:
    refused = call("encoders", "list", "--url", "localhost")
    assert "--url: localhost is no address such as http://host:8080" in said(refused.stderr)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nhi")

        thread = threading.Thread(target=answer)
        thread.start()
        wrong = call("encoders", "list", "--url", f"http://127.0.0.1:{port}")
        thread.join()
    assert "answered 404. Is it an Anchorage service?" in said(wrong.stderr)


def test_a_key_is_asked_for_and_says_the_project(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, auth="keys")
    with running(settings):
        keyless = call("encoders", "list", data_dir=tmp_path)
        assert "Pass --api-key, or set ANCHORAGE_API_KEY." in said(keyless.stderr)
        scopes = ("--scope", "write", "--project", "search")
        key = call("keys", "create", "--name", "k", *scopes, data_dir=tmp_path).stdout.strip()
        done = call("encoders", "add", "a", "--dim", "3", "--api-key", key, data_dir=tmp_path)
        assert done.exit_code == 0, done.output


def test_ctrl_c_is_one_line_and_the_usual_exit_code() -> None:
    # Python installs no handler where the parent ignores SIGINT, as a shell does for its jobs.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"

        ended, main = threading.Event(), threading.main_thread()

        def interrupt() -> None:
            connection, _ = silent.accept()
            with connection:
                connection.recv(1)  # the command waits for its answer
                assert main.ident is not None
                signal.pthread_kill(main.ident, signal.SIGINT)
                ended.wait(60)

        thread = threading.Thread(target=interrupt)
        thread.start()
        try:
            stopped = call("encoders", "list", "--url", url)
        finally:
            signal.signal(signal.SIGINT, before)
            ended.set()
            thread.join()
    assert (stopped.exit_code, stopped.output) == (130, "Interrupted.\n")


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        ({"detail": "send `force_space: true` if"}, "send `--force-space` if"),
        ({"detail": "Lower `native: 5` or `k`."}, "Lower `--native 5` or `k`."),
        ({"detail": "No encoder 'mini'.", "did_you_mean": "minilm"}, "Did you mean minilm?"),
        ({"detail": "Not finite.", "rows": [*range(12)]}, "Rows, from 0: 0, 1, 2, 3, 4, 5, 6, 7"),
        ({"detail": "It failed.", "hint": "Add `rows`."}, "It failed. Add `rows`."),
    ],
)
def test_a_problem_is_printed_in_the_options_of_the_command(
    problem: dict[str, str], expected: str
) -> None:
    options = {"force_space": "--force-space", "native": "--native"}
    assert expected in explain(Refused(422, problem), options)
