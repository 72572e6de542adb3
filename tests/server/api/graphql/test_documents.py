"""Documents: what is measured before it is validated, and what is kept."""

from __future__ import annotations

import asyncio

import pytest

from tailrace_server.api.graphql.documents import DocumentCache, read
from tailrace_server.api.graphql.errors import DocumentRefused
from tailrace_server.api.settings import HttpSettings
from tests.server.api.graphql.generated import BUILT

SUBSCRIPTION = "subscription { onCatalogChange { version } }"


def billions() -> str:
    """Return a few lines that spread to 10^30 fields."""
    lines = [f"fragment F{n} on Change {{ {f'...F{n + 1} ' * 10} }}" for n in range(30)]
    lines[-1] = "fragment F29 on Change { version }"
    return "subscription { onCatalogChange { ...F0 } } " + " ".join(lines)


def deep(levels: int) -> str:
    return f"subscription {{ onCatalogChange {'{ ... on Change ' * levels}{{ version }}{'}' * levels} }}"


def chained(fragments: int, levels: int) -> str:
    """Return fragments that are nested a little each, and spread one in the other."""
    nested = "{ ...F0 } "
    for n in range(fragments):
        nested += f"fragment F{n} on Query {{ {'... { ' * levels} ...F{n + 1} {'} ' * levels} }} "
    return nested + f"fragment F{fragments} on Query {{ __typename }}"


@pytest.mark.parametrize(
    ("text", "limits", "name"),
    [
        (SUBSCRIPTION, HttpSettings(graphql_depth=1), "1 fields deep"),
        (SUBSCRIPTION, HttpSettings(graphql_fields=1), "1 fields, fragments spread"),
        ("{ a: catalogs { b: name } }", HttpSettings(graphql_aliases=1), "1 aliases"),
        (SUBSCRIPTION, HttpSettings(graphql_tokens=5), "5 tokens"),
        (billions(), HttpSettings(), "1000 fields"),
        (deep(3_000), HttpSettings(graphql_tokens=100_000), "nested"),
        (chained(60, 15), HttpSettings(), "nested too deeply"),
        (
            "{ __schema { types { name } } }",
            HttpSettings(graphql_introspection=False),
            "introspection",
        ),
        ("query ($v: Long) { catalogs { name } }", HttpSettings(), "never used"),
        (
            "subscription { onCatalogChange { ...F } } fragment F on Change { ...F }",
            HttpSettings(),
            "itself",
        ),
        ("subscription { onCatalogChange { ...F } }", HttpSettings(), "Unknown fragment"),
        ("type Query { a: Int }", HttpSettings(), "not executable"),
    ],
)
def test_a_document_above_a_limit_or_not_valid_is_refused(
    text: str, limits: HttpSettings, name: str
) -> None:
    with pytest.raises(DocumentRefused) as raised:
        read(BUILT, text, limits)
    assert any(name in fault.message for fault in raised.value.faults), raised.value.faults


@pytest.mark.parametrize(
    ("text", "schema_only"),
    [
        ("{ __schema { types { name } } }", True),
        ("{ ...F } fragment F on Query { a: __schema { types { name } } }", True),
        ("{ ... { ... on Query { __schema { types { name } } } } __typename }", True),
        ("{ ...F ...G } fragment F on Query { ...G } fragment G on Query { __typename }", True),
        ("{ catalogs { name } }", False),
        ("{ ...F } fragment F on Query { __typename ... { catalogs { name } } }", False),
        ("{ ... { __typename } ...F } fragment F on Query { catalogs { name } }", False),
    ],
)
def test_what_reads_the_schema_only_is_known_through_its_fragments(
    text: str, schema_only: bool
) -> None:
    """It may be long work, which is kept from the event loop."""
    document = read(BUILT, text, HttpSettings())
    assert document.reads_schema_only(document.operation(None)) is schema_only


def test_the_faults_of_a_made_up_document_are_bounded() -> None:
    text = f"{{ {' '.join(f'nothing{n}' for n in range(500))} }}"
    with pytest.raises(DocumentRefused) as raised:
        read(BUILT, text, HttpSettings())
    assert len(raised.value.faults) <= 20


async def test_an_equal_document_is_validated_once() -> None:
    cache = DocumentCache(HttpSettings())
    first = await cache.get("schema 1", BUILT, SUBSCRIPTION)
    assert await cache.get("schema 1", BUILT, SUBSCRIPTION) is first
    assert await cache.get("schema 2", BUILT, SUBSCRIPTION) is not first
    assert (cache.hits, cache.misses) == (1, 2)
    same = [cache.get("schema 3", BUILT, SUBSCRIPTION) for _ in range(50)]
    assert len(set(map(id, await asyncio.gather(*same)))) == 1
    assert cache.misses == 3


async def test_the_cache_is_bounded_and_holds_valid_documents_only() -> None:
    limit = 4_096
    cache = DocumentCache(HttpSettings(graphql_documents_bytes=limit))
    for number in range(200):
        await cache.get("schema", BUILT, f"{SUBSCRIPTION} # {number}")
        with pytest.raises(DocumentRefused):
            await cache.get("schema", BUILT, f"{{ nothing{number} }}")
    assert len(cache) <= limit // len(SUBSCRIPTION)
    before = cache.hits
    await cache.get("schema", BUILT, f"{SUBSCRIPTION} # 199")
    assert cache.hits == before + 1


async def test_the_bound_of_the_cache_is_in_bytes() -> None:
    text = f"{SUBSCRIPTION} # {'語' * 1_000}"
    cache = DocumentCache(HttpSettings(graphql_documents_bytes=2 * len(text)))
    for number in range(3):
        await cache.get("schema", BUILT, f"{text} {number}")
    assert len(cache) == 1


async def test_documents_of_an_older_schema_are_dropped() -> None:
    cache = DocumentCache(HttpSettings())
    for key in ("old", "new"):
        await cache.get(key, BUILT, SUBSCRIPTION)
    cache.forget("old")
    assert len(cache) == 1
    await cache.get("new", BUILT, SUBSCRIPTION)
    assert cache.hits == 1


async def test_a_document_that_is_too_long_is_not_looked_at() -> None:
    cache = DocumentCache(HttpSettings(graphql_document_bytes=60))
    with pytest.raises(DocumentRefused, match="60 bytes"):
        await cache.get("schema", BUILT, f"{SUBSCRIPTION} # {'é' * 10}")


@pytest.mark.parametrize("value", [True, False])
def test_directives_with_variables_decide_anew_each_time(value: bool) -> None:
    text = "subscription ($v: Boolean!) { onProductChange { version cursor @include(if: $v) } }"
    document = read(BUILT, text, HttpSettings())
    for variables in ({"v": value}, {"v": not value}, {"v": value}):
        found = document.compiled(
            document.operation(None), document.coerced(document.operation(None), variables)
        )
        assert found is not None
        plain = "subscription { onProductChange { version cursor } }"
        other = read(
            BUILT, plain if variables["v"] else plain.replace(" cursor", ""), HttpSettings()
        )
        same = other.compiled(other.operation(None), other.coerced(other.operation(None), {}))
        assert same is not None
        assert found[0].codec.name == same[0].codec.name
