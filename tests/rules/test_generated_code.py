"""client/tailrace/v1 is what `make proto` makes of proto/, byte for byte."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc

from tools.proto import ROOT, generate

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
def test_generated_code_is_that_of_the_sources(tmp_path: Path) -> None:
    generate(tmp_path)
    assert _generated_below(ROOT / "client") == _generated_below(tmp_path)


def test_other_languages_get_packages_from_the_sources_alone(tmp_path: Path) -> None:
    """Go's generator refuses a file without ``go_package``."""
    sources = sorted((ROOT / "proto").glob("tailrace/v1/*.proto"))
    descriptors = tmp_path / "descriptors"
    names = [str(each.relative_to(ROOT / "proto")) for each in sources]
    include = f"--proto_path={resources.files('grpc_tools') / '_proto'}"
    paths = [f"--proto_path={ROOT / 'proto'}", include]
    assert protoc.main(["protoc", *paths, f"--descriptor_set_out={descriptors}", *names]) == 0
    files = FileDescriptorSet.FromString(descriptors.read_bytes()).file
    assert len(files) == len(sources) > 0
    for each in files:
        assert each.options.go_package == "tailrace/v1;tailracev1", each.name
        assert each.options.java_multiple_files, each.name


def _generated_below(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.glob("tailrace/v1/*_pb2*.py*")}
