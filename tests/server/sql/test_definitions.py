"""Statements that define views and change tables: what they make, and what they refuse and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.errors import InvalidRequest, NotPermitted
from tailrace_server.sql.ddl import lookback_us
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.schema.mapping import SchemaMapping
from tailrace_server.wal.sequences.settings import change_settings
from tailrace_server.wal.state.commit_log import CommitLog
from tests.server.sql.test_change_tables import define
from tests.server.sql.test_query import ask, products

if TYPE_CHECKING:
    from pathlib import Path


def test_what_is_defined_is_shown_altered_and_dropped(log_root: Path) -> None:
    products(log_root)
    assert define(log_root, "create cdc c on PRODUCT") == "change table c created"
    again = "CREATE CDC IF NOT EXISTS c ON product INCLUDE (PRE);"
    assert define(log_root, again) == "nothing to do: change table c is there"
    assert ask(log_root, "SHOW CDC")[0][4] == 1
    altered = "ALTER CDC c SET INCLUDE (POST, PRE), SALT_BUCKETS = 256, MAX_LOOKBACK = '7 days'"
    assert define(log_root, altered) == "change table c altered"
    assert ask(log_root, "SHOW CDC")[0][:5] == ("c", "product", "PRE, POST", "7d", 256)
    define(log_root, "CREATE VIEW cheap AS SELECT ID, name FROM product WHERE Price < 10")
    again = "CREATE VIEW IF NOT EXISTS cheap AS SELECT id FROM product"
    assert define(log_root, again) == "nothing to do: view cheap is there"
    assert ask(log_root, "SHOW VIEWS")[0][:4] == ("cheap", "product", "id, name", '"price" < 10')
    assert ask(log_root, "SHOW TABLES") == [
        ("product", "entity type", 3, "id"),
        ("cheap", "view", 2, "id"),
        ("c", "change table", 3, "id"),
    ]
    assert define(log_root, "DROP CDC c ON product") == "change table c dropped"
    assert define(log_root, "DROP VIEW cheap") == "view cheap dropped"
    gone = "DROP CDC IF EXISTS c"
    assert define(log_root, gone) == "nothing to do: change table c is not there"
    assert ask(log_root, "SHOW CDC") == ask(log_root, "SHOW VIEWS") == []


def test_comments_may_stand_before_a_statement(log_root: Path) -> None:
    products(log_root)
    before = "-- what it is for; CREATE CDC b\n/* and /* more ' */ */ --\r\n  "
    assert define(log_root, f"{before}CREATE /* here */ CDC c ON product -- as well") == (
        "change table c created"
    )
    assert ask(log_root, f"{before}SHOW CDC /* too */")[0][0] == "c"
    define(log_root, f"{before}CREATE VIEW v AS SELECT id FROM product; -- done")
    described = [ask(log_root, f"{each}DESCRIBE product ;") for each in ("", before)]
    assert described[0] == described[1]
    assert "state of product" in str(ask(log_root, f"{before}EXPLAIN SELECT id FROM product; --"))
    with pytest.raises(InvalidRequest, match=r"line 3, column 29: expected .*, not 'TTL'"):
        define(log_root, f"{before}CREATE CDC d ON product TTL = 3")
    with pytest.raises(InvalidRequest, match="CREATE is not supported"):
        define(log_root, "/*+ CDC_INCLUDE(PRE) */ CREATE CDC d ON product")
    assert len(ask(log_root, "SHOW CDC")) == 1
    with pytest.raises(InvalidRequest, match="longer than"):
        ask(log_root, "/**/" * 40_000 + "/*")


WRONG = [
        ("CREATE CDC product ON product", "product is already the name of an entity type"),
        ("CREATE CDC V ON product", "V is already the name of a view"),
        ("CREATE VIEW c AS SELECT id FROM product", "c is already the name of a change table"),
        ("CREATE CDC x ON produc", "no table 'produc'; did you mean product"),
        ("CREATE CDC x ON c", "c is a change table"),
        ("CREATE CDC x ON product INCLUDE (PRE, IMAGE)", "no image 'IMAGE'"),
        ("CREATE CDC x ON product INCLUDE (PST)", "no image 'PST'; did you mean POST"),
        ("CREATE CDC x ON product SALT_BUCKETS = 0", "SALT_BUCKETS = 0: must be a whole number from 1 to 256"),
        ("ALTER CDC c SET SALT_BUCKETS = 257", "SALT_BUCKETS = 257: must be a whole number from 1 to 256"),
        ("CREATE CDC x ON product SALT_BUCKETS = 1000", "SALT_BUCKETS = 1000: must be a whole number"),
        ("CREATE CDC x ON product SALT_BUCKETS = 2.5", "SALT_BUCKETS = 2.5: must be a whole number"),
        ("CREATE CDC x ON product SALT_BUCKETS = 'four'", "SALT_BUCKETS = four: must be a whole number"),
        ("CREATE CDC x ON product SALT_BUCKETS = -1", "expected a number, not '-'"),
        ("CREATE CDC x ON product SALT_BUCKETS 4", "expected =, not '4'"),
        ("CREATE CDC x ON product MAX_LOOKBACK = 'soon'", "write '7 days'"),
        ("CREATE CDC x ON product MAX_LOOKBACK = '0 s'", "from 1 second"),
        ("CREATE CDC x ON product MAX_LOOKBACK = '8 days'", "the catalog allows at most 7d"),
        ("ALTER CDC c SET MAX_LOOKBACK = '8 days'", "the catalog allows at most 7d"),
        ("CREATE CDC x ON product INCLUDE", "the statement ends where"),
        ("CREATE CDC x ON product TTL = 3", "27: expected INCLUDE or MAX_LOOKBACK or SALT_BUCKETS, not 'TTL'"),
        ("CREATE CDC x ON product INCLUDE (PRE) INCLUDE (POST)", "INCLUDE is given twice"),
        ('CREATE CDC "x y" ON product', "'x y' is not a valid name"),
        ("CREATE CDC x", "the statement ends where ON is expected"),
        ("ALTER CDC c SET", "SET needs INCLUDE"),
        ("ALTER CDC d SET INCLUDE (PRE)", "there is no change table 'd'"),
        ("DROP CDC d", "there is no change table 'd'"),
        ("DROP CDC v", "v is a view, not a change table"),
        ("DROP VIEW IF EXISTS c", "c is a change table, not a view"),
        ("DROP CDC c ON other", "c is on product, not on other"),
        ("CREATE OR REPLACE VIEW v AS SELECT id FROM product", "DROP it"),
        ("CREATE VIEW x AS SELECT id FROM v", "v is a view: name its entity type"),
        ("CREATE VIEW x AS SELECT names FROM product", "no column 'names'; did you mean name"),
        ("CREATE VIEW x AS SELECT id FROM product WHERE prise > 1", "no column 'prise'"),
        ("CREATE VIEW x AS SELECT id FROM product WHERE price > 'a'", "is compared with a number"),
        ("CREATE VIEW x AS SELECT id, id FROM product", "column 'id' is given twice"),
        ("CREATE VIEW x AS SELECT price * 2 FROM product", "is not a column under its own name"),
        ("CREATE VIEW x AS SELECT id FROM product LIMIT 1", "LIMIT is not supported"),
        ("CREATE VIEW x AS SELECT id FROM product FOR VERSION AS OF 1", "after product is not supported"),
        ("CREATE VIEW x AS SELECT id FROM product p JOIN product q USING (id)", "JOINS is not supported"),
]  # fmt: skip


def test_what_is_wrong_is_said(log_root: Path) -> None:
    products(log_root)
    define(log_root, "CREATE CDC c ON product")
    define(log_root, "CREATE VIEW v AS SELECT * FROM product")
    log = CommitLog.open(log_root / "shop")
    change_settings(log.store, log.view, {"max_lookback": 7 * 86_400 * 1_000_000}, 5)
    for text, error in WRONG:
        with pytest.raises(InvalidRequest, match=error):
            define(log_root, text)


def test_a_name_that_means_two_things_in_another_case_is_refused_everywhere(
    log_root: Path,
) -> None:
    """A name in quotes, or in the case of one of them, means that one."""
    with LogWriter.open(log_root, "shop") as writer:
        for name in ("item", "Item"):
            writer.append([Mutation(name, "1", after=b'{"id":1,"A":1,"a":2,"b":3}')])
    either = 'table \'ITEM\' may be "Item", "item": write it in double quotes'
    for text in (
        "SELECT b FROM ITEM",
        "DESCRIBE ITEM",
        "CREATE CDC c ON ITEM",
        "CREATE VIEW v AS SELECT b FROM ITEM",
    ):
        with pytest.raises(InvalidRequest, match=either):
            define(log_root, text)
    assert define(log_root, "CREATE CDC c ON Item") == "change table c created"
    assert define(log_root, 'CREATE VIEW v AS SELECT b, "a" FROM "item"') == "view v created"
    with pytest.raises(InvalidRequest, match="ITEM is already the name of an entity type"):
        define(log_root, "CREATE CDC ITEM ON item")
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([Mutation("part", "1", after=b'{"Id":1,"iD":1}')])
    with pytest.raises(InvalidRequest, match=r"column 'ID' may be \"Id\", \"iD\": write it in"):
        define(log_root, "CREATE VIEW w AS SELECT ID FROM part")


def test_who_may_not_define_may_look(log_root: Path) -> None:
    products(log_root)
    define(log_root, "CREATE CDC c ON product")
    with pytest.raises(NotPermitted, match="operate the catalog"):
        ask(log_root, "DROP CDC c")
    assert len(ask(log_root, "SHOW CDC")) == 1


QUESTIONS = [
    ("SELECT /*+ CDC_INCLUDE(PRF) */ * FROM c", "no image 'PRF'; did you mean PRE"),
    ("SELECT /*+ INDEX(c) */ * FROM c", "the only supported hint is"),
    ("SELECT * /*+ CDC_INCLUDE(PRE) */ FROM c", "directly after SELECT"),
    ("SELECT /*+ CDC_INCLUDE(PRE) */ * FROM product", "in a SELECT that reads a change table"),
    ("SELECT * FROM c FOR VERSION AS OF 2", "cannot be read as of a version"),
    ("SELECT PHOENIX_ROW_TIMESTAMP(1) FROM c", "takes no arguments"),
    ("SELECT json FROM c", "no column 'json'; did you mean CDC JSON"),
    ("SELECT * FROM d", "there is no table 'd'; known: c, product, v"),
    ("SELECT * FROM CHANGES('d')", "there is no table 'd'; known: c, product, v"),
    ("SHOW DATABASES", "SHOW is not supported"),
    ("SELECT * FROM CHANGES('c', 2)", "c is a change table: read c itself"),
]


def test_what_is_wrong_with_a_question_is_said(log_root: Path) -> None:
    products(log_root)
    define(log_root, "CREATE CDC c ON product")
    define(log_root, "CREATE VIEW v AS SELECT id FROM product")
    for text, error in QUESTIONS:
        with pytest.raises(InvalidRequest, match=error):
            ask(log_root, text)


def test_lengths_of_time_are_read_as_people_write_them() -> None:
    for text in ("7 days", "7d", "168 Hours", "10080m", " 604800 seconds "):
        assert lookback_us(text) == 7 * 86_400 * 1_000_000


def test_a_view_keeps_its_names_while_its_entity_type_changes(log_root: Path) -> None:
    products(log_root)
    define(log_root, "CREATE VIEW cheap AS SELECT id, name FROM product WHERE price < 10")
    define(log_root, "CREATE VIEW everything AS SELECT * FROM product")
    assert ask(log_root, "SELECT id, name FROM cheap") == [(1, "chair")]
    assert ask(log_root, "SELECT id FROM cheap FOR VERSION AS OF 1 WHERE id < 5") == [(1,)]
    assert "1 key;" in str(ask(log_root, "EXPLAIN SELECT name FROM cheap WHERE id = 1")[0][0])
    renamed = SchemaMapping.parse(
        """
        [entity_types.article]
        renamed_from = "product"
        [entity_types.article.columns]
        title = { renamed_from = "name" }
        cost = { renamed_from = "price" }
        """
    )
    with LogWriter.open(log_root, "shop", mapping=renamed) as writer:
        writer.append([Mutation("article", "3", after=b'{"id":3,"title":"mug","cost":9}')])
        writer.commit(publish=True)
    both = "SELECT id, name FROM cheap ORDER BY id"
    assert ask(log_root, both) == [(1, "chair"), (3, "mug")]
    assert ask(log_root, "SELECT id FROM cheap FOR VERSION AS OF 1") == [(1,)]
    assert ask(log_root, "SELECT title FROM everything WHERE id = 3") == [("mug",)]
    dropped = SchemaMapping.parse("[entity_types.article.columns]\ncost = { dropped = true }")
    with LogWriter.open(log_root, "shop", mapping=dropped) as writer:
        writer.append([Mutation("article", "4", after=b'{"id":4,"title":"jug"}')])
        writer.commit(publish=True)
    with pytest.raises(InvalidRequest, match="view cheap needs column 'price', which article does"):
        ask(log_root, both)
    assert ask(log_root, f"{both.replace('ORDER', 'FOR VERSION AS OF 5 ORDER')}") == [
        (1, "chair"),
        (3, "mug"),
    ]
    assert len(ask(log_root, "SELECT * FROM everything")) == 4


def test_a_name_that_the_source_took_later_means_neither(log_root: Path) -> None:
    products(log_root)
    define(log_root, "CREATE VIEW cheap AS SELECT * FROM product WHERE price < 10")
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([Mutation("cheap", "1", after=b'{"a":1}')])
        writer.commit(publish=True)
    with pytest.raises(InvalidRequest, match="an entity type and a view: DROP the view"):
        ask(log_root, "SELECT * FROM cheap")
    # A name of the statement's own goes before.
    own = "WITH cheap AS (SELECT 1 AS x) SELECT x FROM cheap"
    assert ask(log_root, own) == [(1,)]
    assert define(log_root, "DROP VIEW cheap") == "view cheap dropped"
