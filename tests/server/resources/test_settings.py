"""Settings of the engine. That docs/settings.md is made of them is covered in tests/rules/test_settings.py."""

from __future__ import annotations

from dataclasses import fields

from tailrace_server.resources.settings import EngineSettings, SubscriptionLimits


def test_every_setting_has_a_unit_and_a_reason() -> None:
    for each in fields(EngineSettings):
        assert each.metadata["unit"], each.name
        assert each.metadata["reason"], each.name


def test_a_subscription_can_only_change_what_the_engine_bounds() -> None:
    bounds = {each.name: each.default for each in fields(EngineSettings)}
    asked = [
        each for each in fields(SubscriptionLimits) if each.type in ("int | None", "float | None")
    ]
    assert len(asked) == 3
    for each in asked:
        assert isinstance(bounds[each.name], int | float)
        assert each.default is None


def test_budgets_of_parts_fit_into_the_memory_budget() -> None:
    settings = EngineSettings()
    parts = settings.frames_bytes + settings.reads_bytes + settings.rings_bytes
    assert parts < settings.memory_bytes
    assert settings.message_bytes <= settings.max_message_bytes
