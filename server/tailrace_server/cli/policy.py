"""``tailrace policy``: explain a policy file, and test requests against it, without a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tailrace.criteria import canonical
from tailrace.errors import InvalidRequest, NotPermitted
from tailrace.v1.change_capture_pb2 import SubscribeRequest
from tailrace_server.access.identity import Identity, IdentityKind
from tailrace_server.access.policy_file import read_policy
from tailrace_server.access.policy_words import columns_words, policy_words, why_words
from tailrace_server.api import requests
from tailrace_server.api.json_requests import decode, from_json
from tailrace_server.api.requests import KEYS_MAX
from tailrace_server.cli.terminal.errors import DONE
from tailrace_server.filters.tree import words_of
from tailrace_server.grants.grant import Action
from tailrace_server.grants.narrowing import narrowed
from tailrace_server.rows.criteria_form import criteria_form

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace_server.access.policy import Policy

app = typer.Typer(no_args_is_help=True, help="Policy files, which grant access to catalogs.")
_ANONYMOUS: Final = "anonymous"
_KINDS: Final = {"api_key": IdentityKind.API_KEY, "certificate": IdentityKind.CERTIFICATE}
_CRITERIA_MAX: Final = 1_000
NOT_GRANTED: Final = 1
"""Exit status of ``policy test`` if a server would refuse the request."""

PolicyPath = Annotated[
    Path, typer.Argument(metavar="FILE", help="The file of `tailrace serve --policy`.")
]


@app.command()
def check(
    file: PolicyPath,
    log: Annotated[
        Path | None,
        typer.Option(
            "--log",
            metavar="ROOT",
            help="Log root; also report names in the policy that do not exist in its catalogs.",
        ),
    ] = None,
) -> int:
    """Explain in words what a policy file grants, or what is wrong with it."""
    policy = read_policy(file)
    for line in policy_words(policy):
        typer.echo(line)
    if log is not None:
        for line in _meaningless(policy, log):
            typer.echo(line)
    return DONE


def _meaningless(policy: Policy, root: Path) -> Iterator[str]:
    """Yield a line for each name in a grant that is neither an entity type nor a view of a catalog."""
    from tailrace.errors.requests import nearest
    from tailrace_server.grants.conditions import unknown_names_in
    from tailrace_server.wal.catalog import list_catalogs, open_catalog
    from tailrace_server.wal.sequences.definitions import newest_definitions

    for catalog in list_catalogs(root):
        rules = [each for each in policy.rules if each.entity_types and each.is_for(catalog)]
        if not rules:
            continue
        commits = open_catalog(root, catalog)
        view = commits.view
        views = newest_definitions(commits.store, view.uuid).views
        known = [*view.schema_of(view.published).entity_types, *views]
        for rule in rules:
            for name in unknown_names_in(view, rule.entity_types or (), views):
                yield (
                    f"{rule.name}: catalog {catalog} has no entity type or view {name!r}; the "
                    f"name grants nothing until one exists{nearest(name, known)}"
                )


@app.command("test")
def try_request(
    file: PolicyPath,
    as_: Annotated[
        str,
        typer.Option(
            "--as",
            metavar="CLAIMS",
            help='The caller: a token\'s claims as JSON, with "iss"; {"api_key": NAME}; '
            '{"certificate": NAME}; or anonymous.',
        ),
    ],
    request: Annotated[
        str,
        typer.Option(
            "--request",
            metavar="JSON",
            help='The request: the JSON of a subscribe (docs/rest.md), with "catalog".',
        ),
    ],
    action: Annotated[
        Action, typer.Option("--action", metavar="ACTION", help="Kind of the request.")
    ] = Action.SUBSCRIBE,
) -> int:
    """Show which part of a request a caller would get, and by which grants."""
    policy, identity = read_policy(file), _identity(as_)
    value = decode(request, "--request")
    catalog = value.pop("catalog", None) if isinstance(value, dict) else None
    if not isinstance(catalog, str):
        raise InvalidRequest('--request: "catalog" is missing')
    message = from_json(SubscribeRequest, value, criteria_max=_CRITERIA_MAX)
    asked, content = requests.criteria(message.criteria), requests.content(message.body)
    # The same steps as in the server: the grant of the caller, then the criteria narrowed by it.
    for line in why_words(policy, identity, catalog):
        typer.echo(line)
    grant = policy.grant(identity, catalog)
    if grant is None:
        typer.echo(f"NOT_PERMITTED: the policy grants nothing of catalog {catalog!r}")
        return NOT_GRANTED
    try:
        found = narrowed(canonical(asked), content, grant, action, judges_rows=True)
    except NotPermitted as error:
        typer.echo(f"NOT_PERMITTED: {error}")
        return NOT_GRANTED
    if found.is_whole:
        typer.echo("granted: the whole request")
        return DONE
    typer.echo(
        "granted: "
        + json.dumps(criteria_form(found.criteria, values_shown=KEYS_MAX), ensure_ascii=False)
    )
    for each in grant.of(action):
        types = "every entity type" if each.entity_types is None else sorted(each.entity_types)
        rows = "" if each.rows is None else f", of rows where {words_of(each.rows)}"
        typer.echo(f"columns of {types}: {columns_words(each.columns)}{rows}")
    return DONE


def _identity(text: str) -> Identity | None:
    """Return the identity in the value of ``--as``; None is anonymous.

    Raises:
        InvalidRequest: The value describes no identity.
    """
    if text == _ANONYMOUS:
        return None
    value: Any = decode(text, "--as")
    if isinstance(value, dict):
        for name, kind in _KINDS.items():
            if value.keys() == {name} and isinstance(value[name], str):
                return Identity(kind, "", value[name])
        if isinstance(value.get("iss"), str):
            return Identity(IdentityKind.JWT, value["iss"], str(value.get("sub", "")), value)
    raise InvalidRequest(
        '--as: must be "anonymous", {"api_key": NAME}, {"certificate": NAME}, or claims with "iss"'
    )
