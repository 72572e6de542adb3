"""Materialize CDCv2 in Avro: files, single messages and JSON lines of the documented schema.

::

    form = AvroForm.of(schema)                             # an error names the place of a difference
    for statement in read_container(form, file): ...       # pure statements, for `tailrace.cdcv2.Reader`
    form.decode(raw), form.encode(statement)               # one message without a container
"""

from __future__ import annotations

from tailrace_server.cdcv2.composites import Tagged
from tailrace_server.cdcv2.container import ContainerReader, read_container, write_container
from tailrace_server.cdcv2.errors import DataMisfit, MessageUnreadable, SchemaDiffers
from tailrace_server.cdcv2.form import AvroForm, read_line, read_lines, write_line, write_lines

__all__ = [
    "AvroForm",
    "ContainerReader",
    "DataMisfit",
    "MessageUnreadable",
    "SchemaDiffers",
    "Tagged",
    "read_container",
    "read_line",
    "read_lines",
    "write_container",
    "write_line",
    "write_lines",
]
