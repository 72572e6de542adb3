"""Which form captures have on stdout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace_server.cli.shown.forms import JsonForm

if TYPE_CHECKING:
    from tailrace.criteria import Content
    from tailrace_server.cli.shown.forms import OutputForm


def form_for_stdout(content: Content, *, as_json: bool) -> OutputForm:
    """Return the form that was asked for, as it suits what stdout is.

    The one for a person needs the extra ``cli``, so it is imported when it is asked for.
    """
    if as_json:
        return JsonForm(content)
    from tailrace_server.cli.shown.text_form import TextForm

    return TextForm.for_stdout()
