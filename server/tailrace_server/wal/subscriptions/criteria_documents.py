"""Criteria as named subscriptions keep them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace.conditions.tree import read_where
from tailrace.criteria import Area, ContainerType, Criteria, Operation, parameter_texts
from tailrace_server.wal.files.subscription_documents import CriteriaDocument

if TYPE_CHECKING:
    from collections.abc import Iterable


def criteria_documents(criteria: Iterable[Criteria]) -> list[CriteriaDocument]:
    """Return criteria in the form of documents."""
    return [
        CriteriaDocument(
            area="" if one.area is None else one.area.name,
            entity_type=list(one.entity_type),
            primary_key=list(one.primary_key),
            operation=[each.name for each in one.operation],
            container_type=[each.name for each in one.container_type],
            container_name=list(one.container_name),
            **_where_members(one),
            parameters=dict(parameter_texts(one.parameters)),
            where_version=one.where_version,
        )
        for one in criteria
    ]


def _where_members(one: Criteria) -> dict[str, Any]:
    where = read_where(one.where)
    if where is None:
        return {}
    return {"where": where} if isinstance(where, str) else {"where_tree": where.form}


def criteria_in(documents: Iterable[CriteriaDocument]) -> tuple[Criteria, ...]:
    """Return the criteria that documents hold."""
    return tuple(
        Criteria(
            area=Area[one.area] if one.area else None,
            entity_type=tuple(one.entity_type),
            primary_key=tuple(one.primary_key),
            operation=tuple(Operation[each] for each in one.operation),
            container_type=tuple(ContainerType[each] for each in one.container_type),
            container_name=tuple(one.container_name),
            where=one.where_tree or one.where or None,
            parameters=one.parameters,
            where_version=one.where_version,
        )
        for one in documents
    )
