"""What to install after a failed import. That the lists are complete: process/test_partial_installs.py."""

from __future__ import annotations

import sys

import pytest

from tailrace_server.cli.commands import COMMANDS
from tailrace_server.extras import EXTRAS, installed, remedy


@pytest.mark.parametrize("name", ["pyspark", "pyspark.sql.types"])
def test_the_package_and_its_extra_are_named(name: str) -> None:
    assert remedy(ModuleNotFoundError("x", name=name)) == (
        "this command needs Spark, and the Python package pyspark is not installed: "
        "pip install 'tailrace[spark]'"
    )


def test_each_package_leads_to_one_extra() -> None:
    for extra, packages in EXTRAS.items():
        for package in packages:
            text = remedy(ModuleNotFoundError("x", name=package))
            assert text is not None
            assert text.endswith(f" {package} is not installed: pip install 'tailrace[{extra}]'")


def test_a_package_whose_name_only_begins_alike_is_not_ours() -> None:
    assert remedy(ModuleNotFoundError("x", name="pyarrow_hotfix")) is None
    assert remedy(ModuleNotFoundError("x", name="")) is None


def test_each_command_names_an_extra_that_there_is() -> None:
    for command in COMMANDS.values():
        assert command.extra is None or command.extra in EXTRAS


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_whose_packages_are_missing_is_not_installed(
    extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert installed(extra)
    monkeypatch.setattr("sys.path", [])
    for package in EXTRAS[extra]:
        monkeypatch.delitem(sys.modules, package, raising=False)
    assert not installed(extra)
