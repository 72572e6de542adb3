"""A made-up shop in memory: customers register, orders are placed, paid and cancelled, prices change.

`Shop.transactions` yields the transactions of the shop's database, in commit order. Equal seeds give equal
transactions. Values are JSON texts as a connector would send them. They include the difficult cases of real
feeds: decimals as text and as numbers with trailing zeros, exponents, integers beyond 2^53, nulls, escapes, and
letters of many alphabets.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Row = dict[str, str]
"""Column → JSON text of its value, in the order of the table's columns."""

KEYS: Final = {
    "product": ("id",),
    "customer": ("id",),
    "order": ("id",),
    "order_line": ("order_id", "line"),
}
"""Table → columns of its primary key."""

_FIRST_ID: Final = 2**53 + 1
"""Default first id of customers and orders: the smallest integer that a double cannot represent."""
_EPOCH_US: Final = 1_762_000_000_000_000
_NAMES: Final = [
    "Ada Lovelace",
    "Jürgen Groß",
    "Zoë Ångström",
    "李小龙",
    "Łukasz Żółw",
    "Μαρία Παππά",
    'Conan "Red" O\'Brien',
    "Наталья Ильина",
    "José Peña",
    "Søren Kjær",
    "آمنة حداد",
    "Eve\tTab",
]
_CITIES: Final = ["Köln", "São Paulo", "København", "京都", "Kraków", "Αθήνα", "New York", "Ōsaka"]
_THINGS: Final = [
    "Kettle",
    "Lampe",
    "Crêpe pan",
    "Ångström ruler",
    "茶碗",
    "Löffel",
    "Tail race 🌊",
    "Ψ-meter",
]
_STATES: Final = ("placed", "paid", "shipped")


@dataclass(slots=True)
class RowStep:
    """The effect of one statement on one row."""

    op: str
    """Debezium's code of the operation: c (create), u (update), d (delete), or r (read by a snapshot)."""
    table: str
    before: Row | None
    after: Row | None

    @property
    def key(self) -> Row:
        """The row's primary key."""
        row = self.after if self.after is not None else self.before
        assert row is not None
        return {name: row[name] for name in KEYS[self.table]}


@dataclass(slots=True)
class ShopTransaction:
    """The changes of one transaction of the shop's database."""

    number: int
    committed_us: int
    steps: list[RowStep] = field(default_factory=list)
    snapshot: bool = False


class Shop:
    """The shop's tables, and the actions that change them."""

    def __init__(
        self,
        seed: int,
        *,
        products: int = 200,
        customers: int = 300,
        first_id: int = _FIRST_ID,
        now_us: Callable[[], int] | None = None,
    ) -> None:
        """Open the shop with some products and customers.

        Args:
            seed: Seed of the random choices; equal seeds give equal transactions.
            products: Number of products in the snapshot.
            customers: Number of customers in the snapshot.
            first_id: First id of customers and orders.
            now_us: Returns the time of the next transaction, in microseconds since 1970; None makes up times.
        """
        self._random = random.Random(seed)
        self._tables: dict[str, dict[tuple[str, ...], Row]] = {table: {} for table in KEYS}
        self._number = 700
        self._clock = now_us
        self._now_us = _EPOCH_US
        self._next_id = dict.fromkeys(KEYS, first_id) | {"product": 1}
        self._current = self._begin()
        self._current.snapshot = True
        for _ in range(products):
            self._insert("product", self._product())
        for _ in range(customers):
            self._insert("customer", self._customer())
        for step in self._current.steps:
            step.op = "r"

    def transactions(self, count: int | None = None) -> Iterator[ShopTransaction]:
        """Yield the snapshot, then ``count`` transactions; None yields transactions without end."""
        yield self._current
        actions: list[tuple[Callable[[], None], int]] = [
            (self._place_order, 40),
            (self._move_order, 25),
            (self._new_customer, 10),
            (self._edit_customer, 10),
            (self._cancel_order, 6),
            (self._reprice, 4),
            (self._think_again, 3),
            (self._renumber_product, 2),
        ]
        for _ in itertools.count() if count is None else range(count):
            self._current = self._begin()
            while not self._current.steps:
                [action] = self._random.choices([d for d, _ in actions], [w for _, w in actions])
                action()
            yield self._current

    def _begin(self) -> ShopTransaction:
        self._number += self._random.choice((1, 1, 1, 2, 3))
        passed_us = self._random.randint(200, 900_000)
        self._now_us = self._now_us + passed_us if self._clock is None else self._clock()
        return ShopTransaction(self._number, self._now_us)

    # Actions. Each adds steps to the current transaction, or none if the action is not possible now.

    def _place_order(self) -> None:
        customer = self._some("customer")
        order_id = self._take_id("order")
        lines = self._random.randint(1, 5)
        total = 0
        for line in range(1, lines + 1):
            product = self._some("product")
            amount = self._random.randint(1, 4)
            cents = round(float(orjson.loads(orjson.loads(product["price"]))) * 100) * amount
            total += cents
            self._insert(
                "order_line",
                {
                    "order_id": str(order_id),
                    "line": str(line),
                    "product_id": product["id"],
                    "amount": str(amount),
                    "price": _text(f"{cents / 100:.2f}"),
                    "note": self._random.choice(
                        ["null", "null", _text("gift 🎁"), '"\\u00e0 part"']
                    ),
                },
            )
            left = int(product["stock"]) - amount
            self._update("product", product, {"stock": str(left if left >= 0 else 500)})
        self._insert(
            "order",
            {
                "id": str(order_id),
                "customer_id": customer["id"],
                "state": _text("placed"),
                "total": _text(f"{total / 100:.2f}"),
                "discount": self._random.choice(["0.10", "0.0", "1e-1", "0.25"]),
                "placed_at": str(self._now_us),
            },
        )

    def _move_order(self) -> None:
        if not self._tables["order"]:
            return
        order = self._some("order")
        place = _STATES.index(orjson.loads(order["state"]))
        if place + 1 < len(_STATES):
            self._update("order", order, {"state": _text(_STATES[place + 1])})
            customer = self._tables["customer"].get((order["customer_id"],))
            if customer is not None and place == 0:
                points = int(customer["points"]) + self._random.randint(1, 2**40)
                self._update("customer", customer, {"points": str(points)})

    def _cancel_order(self) -> None:
        if not self._tables["order"]:
            return
        order = self._some("order")
        lines = [
            row for row in self._tables["order_line"].values() if row["order_id"] == order["id"]
        ]
        for row in lines:
            self._delete("order_line", row)
        self._delete("order", order)

    def _new_customer(self) -> None:
        self._insert("customer", self._customer())

    def _edit_customer(self) -> None:
        customer = self._some("customer")
        change = self._random.choice(
            [
                {"city": _text(self._random.choice(_CITIES))},
                {"vip": self._random.choice(["true", "false"])},
                {"email": "null"},
            ]
        )
        self._update("customer", customer, change)

    def _reprice(self) -> None:
        """Change the prices of 1/8 of the products."""
        products = list(self._tables["product"].values())
        rows = self._random.sample(products, len(products) // 8)
        for row in rows:
            self._update("product", row, {"price": self._price(), "factor": self._factor()})

    def _think_again(self) -> None:
        """Change one row twice, and insert and delete another row, all in one transaction."""
        customer = self._customer()
        self._insert("customer", customer)
        product = self._some("product")
        self._update("product", product, {"stock": "1000000"})
        self._update("product", product | {"stock": "1000000"}, {"stock": "17"})
        self._delete("customer", customer)

    def _renumber_product(self) -> None:
        """Change the key of a product; Debezium sends this as a delete and a create."""
        row = self._some("product")
        self._delete("product", row)
        self._insert("product", row | {"id": str(self._take_id("product"))})

    # Rows of the tables.

    def _product(self) -> Row:
        number = self._take_id("product")
        return {
            "id": str(number),
            "sku": _text(f"TR-{number:05}"),
            "name": _text(self._random.choice(_THINGS)),
            "price": self._price(),
            "factor": self._factor(),
            "stock": str(self._random.randint(5, 500)),
            "attributes": _text('{"colour": "blau", "sizes": [1, 2]}'),
            "description": self._random.choice(["null", _text("solid\n\tand “useful”")]),
        }

    def _customer(self) -> Row:
        number = self._take_id("customer")
        return {
            "id": str(number),
            "name": _text(self._random.choice(_NAMES)),
            "email": _text(f"c{number % 100_000}@example.org"),
            "city": _text(self._random.choice(_CITIES)),
            "vip": self._random.choice(["true", "false", "null"]),
            "points": str(self._random.randint(0, 2**62)),
            "since": str(self._now_us),
        }

    def _price(self) -> str:
        return _text(f"{self._random.randint(100, 99_999) / 100:.2f}")

    def _factor(self) -> str:
        return self._random.choice(
            ["1.0", "0.10", "1e2", "1.50E-3", "12345678901234.567890123456789"]
        )

    # Operations of the database.

    def _some(self, table: str) -> Row:
        rows = self._tables[table]
        place = self._random.randrange(len(rows))
        return next(row for at, row in enumerate(rows.values()) if at == place)

    def _take_id(self, table: str) -> int:
        number = self._next_id[table]
        self._next_id[table] += 1
        return number

    def _insert(self, table: str, row: Row) -> None:
        self._tables[table][_key(table, row)] = row
        self._current.steps.append(RowStep("c", table, None, row))

    def _update(self, table: str, row: Row, change: Row) -> None:
        after = row | change
        self._tables[table][_key(table, row)] = after
        self._current.steps.append(RowStep("u", table, row, after))

    def _delete(self, table: str, row: Row) -> None:
        del self._tables[table][_key(table, row)]
        self._current.steps.append(RowStep("d", table, row, None))


def image(row: Row) -> str:
    """Return the image of a row: its JSON text as a connector sends it."""
    return "{" + ",".join(f'"{name}":{value}' for name, value in row.items()) + "}"


def _key(table: str, row: Row) -> tuple[str, ...]:
    return tuple(row[name] for name in KEYS[table])


def _text(value: str) -> str:
    return orjson.dumps(value).decode()
