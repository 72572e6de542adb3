"""Generate the wire contract's Python code: messages, service stubs and their types.

``python -m tools.proto FOLDER`` writes ``FOLDER/tailrace/v1/*_pb2*.py[i]`` from
``proto/tailrace/v1/*.proto``. The generator's version comes from requirements.lock, so the same
sources give the same bytes; a test generates into an empty folder and compares.
"""

from __future__ import annotations

import sys
from importlib import resources
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"


def generate(folder: Path) -> None:
    """Write the generated modules below ``folder``; those of sources that are gone, go.

    Raises:
        SystemExit: The compiler refused a source; it has said why on stderr.
    """
    for stale in folder.glob("tailrace/v1/*_pb2*.py*"):
        stale.unlink()
    sources = sorted(PROTO.rglob("*.proto"))
    if not sources:
        return
    scripts = Path(sys.executable).parent
    status = protoc.main(
        [
            "protoc",
            f"--proto_path={PROTO}",
            f"--proto_path={resources.files('grpc_tools') / '_proto'}",
            f"--plugin=protoc-gen-mypy={scripts / 'protoc-gen-mypy'}",
            f"--plugin=protoc-gen-mypy_grpc={scripts / 'protoc-gen-mypy_grpc'}",
            f"--python_out={folder}",
            f"--mypy_out=quiet:{folder}",
            f"--grpc_python_out={folder}",
            f"--mypy_grpc_out=quiet:{folder}",
            *(str(source.relative_to(PROTO)) for source in sources),
        ]
    )
    if status != 0:
        raise SystemExit(f"protoc ended with status {status}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    generate(Path(sys.argv[1]))
