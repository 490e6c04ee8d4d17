"""What `make install` and `make demo` install, and by which tool."""

from __future__ import annotations

from scripts import install
from tests.test_extras import closure


def test_the_demo_installs_no_tool_of_the_tests():
    assert not {"ray", "pytest", "playwright", "kubernetes", "litellm"} & closure("demo")


def test_what_pip_is_configured_with_holds_for_uv(monkeypatch):
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror/simple")
    monkeypatch.setenv("PIP_FIND_LINKS", "/a /b")
    options = install.pip_options()
    variables = install.variables_of_uv(options)
    assert variables["UV_DEFAULT_INDEX"] == "https://mirror/simple"
    assert variables["UV_FIND_LINKS"] == "/a,/b"
    assert not install.wants_cpu_build(options), "a mirror is asked for all packages"
    assert install.variables_of_uv({**options, "require-hashes": "true"}) is None, "pip does it"
