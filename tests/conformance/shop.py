"""Transactions of a small shop, shared by the suite."""

from __future__ import annotations

from tailrace import ContainerType, Criteria, Operation, Position, Since
from tests.support.model import ModelMutation

OLDEST = Since(Position(0))
COLUMNS = Criteria(container_type=(ContainerType.ENTITY, ContainerType.ATTRIBUTE))


def upsert(key: str, entity_type: str = "product", **columns: object) -> ModelMutation:
    return ModelMutation(entity_type, key, Operation.UPSERT, None, {"id": key, **columns})


def update(key: str, before: dict[str, object], after: dict[str, object]) -> ModelMutation:
    return ModelMutation(
        "product", key, Operation.UPSERT, {"id": key, **before}, {"id": key, **after}
    )


def remove(key: str, operation: Operation = Operation.REMOVE) -> ModelMutation:
    return ModelMutation("product", key, operation, {"id": key}, None)


SHOP: tuple[list[ModelMutation], ...] = (
    [upsert("1", name="chair", price=1), upsert("7", "order", total=3)],
    [update("1", {"name": "chair", "price": 1}, {"name": "chair", "price": 2})],
    [],
    [remove("1"), upsert("2", name="table"), remove("3", Operation.EXPIRE)],
    [ModelMutation("order", None, Operation.REMOVE, None, None)],
)
