"""What a policy comes to: a claim is a value, whatever it has in it, and one that is missing gives nothing."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.access.identity import Identity, IdentityKind
from tailrace_server.access.policy import keys_of
from tailrace_server.access.policy_file import read_policy
from tailrace_server.access.policy_words import policy_words, why_words
from tailrace_server.errors import ConfigError
from tailrace_server.filters.tree import words_of
from tailrace_server.grants.grant import Action, Allowance, Columns, Grant, KeyPatterns

ISSUER = "https://login.example"


def jwt(**claims: Any) -> Identity:
    return Identity(IdentityKind.JWT, ISSUER, str(claims.get("sub", "anna")), claims)


def policy_of(tmp_path: Path, text: str) -> Any:
    file = tmp_path / "policy.toml"
    file.write_text(text)
    return read_policy(file)


def test_grants_of_one_identity_add_up_and_others_get_nothing(tmp_path: Path) -> None:
    policy = policy_of(
        tmp_path,
        f"""
        [[grant]]
        who.issuer = "{ISSUER}"
        who.claims = {{ role = "customer" }}
        catalogs = ["shop", "shop-*"]
        entity_types = "orders"
        hidden_columns = "margin"
        primary_key = "{{sub}}"

        [[grant]]
        who.issuer = "{ISSUER}"
        who.claims = {{ groups = ["staff", "owners"] }}
        catalogs = "shop"
        columns = ["id", "status"]
        bodies = false
        actions = ["subscribe", "statistics"]

        [[grant]]
        who.api_key = "etl"
        catalogs = "*"
        """,
    )
    orders = Allowance(frozenset({"orders"}), frozenset({"4711"}), Columns(frozenset({"margin"})))
    staff = Allowance(
        columns=Columns(frozenset({"id", "status"}), listed=True),
        bodies=False,
        actions=frozenset({Action.SUBSCRIBE, Action.STATISTICS}),
    )
    anna = jwt(sub="4711", role="customer", groups=["visitors", "staff"])
    assert policy.grant(anna, "shop") == Grant((orders, staff))
    assert policy.grant(anna, "shop-2") == Grant((orders,))
    assert policy.grant(anna, "depot") is None
    assert policy.grant(jwt(sub="4711", role="customers"), "shop") is None
    # The same claims of another issuer are nothing.
    other = Identity(IdentityKind.JWT, "https://elsewhere.example", "anna", anna.claims)
    assert policy.grant(other, "shop") is None
    assert policy.grant(None, "shop") is None
    etl = Identity(IdentityKind.API_KEY, "", "etl")
    assert policy.grant(etl, "depot") == Grant((Allowance(),))
    # A certificate, or a subject, of a key's name is not the key.
    assert policy.grant(Identity(IdentityKind.CERTIFICATE, "", "etl"), "depot") is None
    assert policy.grant(jwt(sub="etl"), "depot") is None
    # Of the log of catalogs each sees what happens to those that it may know.
    system = policy.grant(anna, "system")
    assert {each.primary_keys for each in system.allowances} == {
        KeyPatterns(("shop", "shop-*")),
        KeyPatterns(("shop",)),
    }
    assert policy.grant(etl, "system") == Grant((Allowance(),))


@pytest.mark.parametrize(
    ("claims", "keys"),
    [
        ({"sub": "7"}, ["7"]),
        ({"sub": 7}, ["7"]),
        ({"sub": ["7", 8]}, ["7", "8"]),
        ({"sub": "*"}, ["*"]),
        ({"sub": "{tenant}", "tenant": "1"}, ["{tenant}"]),
        ({}, []),
        ({"sub": ""}, []),
        ({"sub": None}, []),
        ({"sub": []}, []),
        ({"sub": True}, []),
        ({"sub": 7.0}, []),
        ({"sub": {"a": 1}}, []),
        ({"sub": [["7"], {}, None, ""]}, []),
    ],
)
def test_a_claim_is_a_value(claims: dict[str, Any], keys: list[str]) -> None:
    assert list(keys_of("{sub}", claims)) == keys


def test_a_claim_in_a_key_of_several_columns_takes_one_place() -> None:
    assert list(keys_of('["{tenant}", 7]', {"tenant": 'x","y'})) == [r'["x\",\"y",7]']
    assert list(keys_of('["{tenant}","a-{sub}"]', {"tenant": 5, "sub": "é"})) == ['[5,"a-é"]']


@pytest.mark.parametrize(
    ("text", "claims", "found"),
    [
        ("t = {tenant}", {"tenant": "acme"}, "\"t\" = 'acme'"),
        ("t = {tenant}", {"tenant": "' OR 1=1 --"}, "\"t\" = ''' OR 1=1 --'"),
        ("t = CAST({a b:c} AS INT)", {"a b:c": 7}, "\"t\" = CAST('7' AS DECIMAL)"),
        (
            "t IN ({of}, 'x') OR n > {n}",
            {"of": ["b", 1], "n": -1},
            "(\"t\" IN ('1', 'b', 'x') OR \"n\" > '-1')",
        ),
        ("t IN ({of}) AND NOT n IS NULL", {"of": "b"}, '("t" IN (\'b\') AND NOT "n" IS NULL)'),
        ("t IS DISTINCT FROM {t}", {"t": "{t}"}, "\"t\" IS DISTINCT FROM '{t}'"),
        ("t = {t}", {}, "the claim 't' is missing"),
        ("t = {t}", {"t": ""}, "the claim 't' is neither a text nor a whole number"),
        ("t = {t}", {"t": {"a": 1}}, "the claim 't' is neither"),
        ("t = {t} OR a = 1", {"t": True}, "the claim 't' is neither"),
        ("t = {t}", {"t": 1.5}, "the claim 't' is neither"),
        ("t = {t}", {"t": 10**5_000}, "the claim 't' is too large"),
        ("t = {t}", {"t": "\ud800"}, "the claim 't' has half a character"),
        ("t = {t}", {"t": ["a"]}, "the claim 't' is a list, which only IN supports"),
        ("t IN ({t})", {"t": []}, "the claim 't' is an empty list"),
        ("t IN ({t})", {"t": ["a", None]}, "the claim 't' is missing"),
    ],
)
def test_a_claim_in_a_condition_is_a_value_or_the_grant_gives_nothing(
    tmp_path: Path, text: str, claims: dict[str, Any], found: str
) -> None:
    policy = policy_of(
        tmp_path,
        f"[[grant]]\nwho.issuer = '{ISSUER}'\ncatalogs = '*'\nentity_types = 'orders'\n"
        f'where = "{text}"',
    )
    caller = jwt(**claims)
    grant = policy.grant(caller, "shop")
    (why,) = why_words(policy, caller, "shop")
    if grant is None:
        ((name, told),) = policy.unfit_claims(caller, "shop")
        assert (name, told[: len(found)]) == ("grant 1", found)
        assert why == f"grant 1 grants nothing: {told}"
        return
    assert words_of(grant.allowances[0].rows) == found
    assert why.endswith(f"all columns, rows {found}")
    (words,) = policy_words(policy)
    assert f" orders where {text} in the catalog" in words


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=5,
    )
)
def test_any_claim_gives_texts_or_nothing(value: Any) -> None:
    held = value if isinstance(value, list) else [value]
    assert all(
        any(key == str(each) for each in held if type(each) in (str, int))
        for key in keys_of("{sub}", {"sub": value})
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[[grant]", "not TOML"),
        ("[[grants]]", "unknown: grants"),
        ("[[grant]]\ncatalogs = '*'", "who is missing"),
        ("[[grant]]\nwho.anonymous = true", "catalogs is missing"),
        (
            "[[grant]]\nwho.api_key = 'a'\nwho.issuer = 'b'\ncatalogs = '*'",
            "a grant for each kind of identity",
        ),
        ("[[grant]]\nwho.anonymous = false\ncatalogs = '*'", "who names nobody"),
        ("[[grant]]\nwho.claims = {a = 1}\ncatalogs = '*'", "who.claims also needs who.issuer"),
        ("[[grant]]\nwho.anonymous = true\ncatalogs = []", "at least one"),
        ("[[grant]]\nwho.anonymous = true\ncatalogs = '*'\ncolumn = 'a'", "unknown: column"),
        (
            "[[grant]]\nwho.anonymous = true\ncatalogs = '*'\ncolumns = 'a'\nhidden_columns = 'b'",
            "not both",
        ),
        ("[[grant]]\nwho.anonymous = true\ncatalogs = '*'\nwhere = 'a > 1'", "needs entity_types"),
        *(
            (
                "[[grant]]\nwho.anonymous = true\ncatalogs = '*'\nentity_types = 'a'\nwhere = "
                + text,
                told,
            )
            for text, told in (
                ("1", "where must be a text"),
                ('"a ="', "where, at character 3: the condition cannot be parsed"),
                ('"a = 1; DROP TABLE b"', "where: give one condition"),
                ('"a = {}"', "where, at character 5: write the name of a claim in braces"),
                ("\"a = '{sub}'\"", "where, at character 5: write {sub} without quotes"),
                (
                    '"a = :sub"',
                    "where: :sub is not a parameter of a policy; a claim is written as {",
                ),
                ('"{sub} = 1"', "where, at character"),
                (
                    '"a LIKE {sub}"',
                    "where: a claim is a value, and cannot be a pattern",
                ),
                ('"a = 1 -- {sub}"', "where: {sub} must be in the place of a value"),
                ('"a = b"', "where, at character 5"),
            )
        ),
        (
            "[[grant]]\nwho.anonymous = true\ncatalogs = '*'\nactions = 'drop'",
            "'drop' is not one of",
        ),
        ("[[grant]]\nwho.anonymous = true\ncatalogs = '*'\nprimary_key = '{sub'", "braces"),
        ("[[grant]]\nwho.anonymous = true\ncatalogs = '*'\nprimary_key = '[1'", "JSON array"),
        ("[[grant]]\nwho.anonymous = true\ncatalogs = '*'\nbodies = 1", "bodies must be"),
        (f"[[grant]]\nbodies = {'9' * 5_000}", "not TOML"),
        (
            f"[[grant]]\nwho.anonymous = true\ncatalogs = '*'\nprimary_key = '{'[' * 9_999}'",
            "JSON array",
        ),
    ],
)
def test_what_has_no_meaning_is_refused_with_its_place(
    tmp_path: Path, text: str, told: str
) -> None:
    with pytest.raises(ConfigError, match=r"policy: .*policy\.toml") as refused:
        policy_of(tmp_path, text)
    assert told in str(refused.value)


VALUES = st.recursive(
    st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.sampled_from(["", "*", "[", "{sub}", '["{sub}", 1]', "{", "shop", "subscribe", ISSUER])
    | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["anonymous", "issuer", "claims", "api_key", "sub", "x"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)
MEMBERS = {
    "name": VALUES,
    "who": VALUES
    | st.just({"anonymous": True})
    | st.fixed_dictionaries(
        {"issuer": st.just(ISSUER)},
        optional={"claims": st.dictionaries(st.just("sub"), VALUES, max_size=1)},
    ),
    "catalogs": VALUES | st.just("*"),
    **dict.fromkeys(("entity_types", "columns", "hidden_columns", "primary_key"), VALUES),
    **dict.fromkeys(("bodies", "actions", "where"), VALUES),
    "unknown": VALUES,
}


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_toml(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


@given(
    st.lists(st.fixed_dictionaries({}, optional=MEMBERS), max_size=3),
    st.dictionaries(st.sampled_from(["sub", "x"]), VALUES, max_size=2),
)
def test_what_is_nearly_a_policy_is_refused_or_grants_no_more_than_it_says(
    grants: list[dict[str, Any]], claims: dict[str, Any]
) -> None:
    text = "".join(
        "[[grant]]\n" + "".join(f"{name} = {_toml(each)}\n" for name, each in grant.items())
        for grant in grants
    )
    with TemporaryDirectory() as folder:
        try:
            policy = policy_of(Path(folder), text)
        except ConfigError:
            return
    for identity in (None, jwt(**claims), Identity(IdentityKind.API_KEY, "", "x")):
        for catalog in ("shop", "system", "*", "", "[", "\0"):
            grant = policy.grant(identity, catalog)
            if grant is None:
                continue
            assert policy.rules_for(identity)
            for allowance in grant.allowances:
                assert allowance.actions
                assert allowance.primary_keys is None or allowance.primary_keys


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda data: data.decode("latin-1")))
def test_no_file_is_a_fault_of_ours(text: str) -> None:

    with TemporaryDirectory() as folder:
        file = Path(folder) / "policy.toml"
        file.write_bytes(text.encode("utf-8", "surrogatepass"))
        with suppress(ConfigError):
            read_policy(file)
