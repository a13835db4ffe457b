from __future__ import annotations

import pytest

from scrapy_smoothpool.exceptions import SettingsError
from scrapy_smoothpool.store.keys import Keys


def test_key_names_are_literally_these() -> None:
    keys = Keys()
    assert keys.allocations == "smoothpool:{default}:allocations"
    assert keys.benched == "smoothpool:{default}:benched"
    assert keys.health == "smoothpool:{default}:health"
    assert keys.wakes == "smoothpool:{default}:wakes"
    assert keys.unchecked == "smoothpool:{default}:unchecked"
    assert keys.ejections == "smoothpool:{default}:ejections"
    assert keys.epoch == "smoothpool:{default}:epoch"
    assert keys.members == "smoothpool:{default}:members"
    assert keys.fingerprint == "smoothpool:{default}:fingerprint"
    assert keys.parked == "smoothpool:{default}:parked"
    assert keys.parked_at == "smoothpool:{default}:parked_at"
    assert keys.publisher == "smoothpool:{default}:publisher"
    assert keys.retired == "smoothpool:{default}:retired"
    assert keys.retired_copied == "smoothpool:{default}:retired:copied"
    assert keys.delivered("ab") == "smoothpool:{default}:delivered:ab"
    assert keys.staging("ab") == (
        "smoothpool:{default}:staging:ab:allocations",
        "smoothpool:{default}:staging:ab:members",
        "smoothpool:{default}:staging:ab:copied",
        "smoothpool:{default}:staging:ab:benched",
        "smoothpool:{default}:staging:ab:wakes",
        "smoothpool:{default}:staging:ab:ejections",
        "smoothpool:{default}:staging:ab:unchecked",
    )
    assert Keys("acme", "shop").allocations == "acme:{shop}:allocations"


@pytest.mark.parametrize(
    "name", ["", " ", "a b", "a{b", "a}b", "a\n", "a\x00", "x" * 101, "*", "["]
)
def test_names_that_make_no_key_are_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="SMOOTHPOOL_POOL"):
        Keys(pool=name)
    with pytest.raises(SettingsError, match="SMOOTHPOOL_KEY_PREFIX"):
        Keys(prefix=name)


@pytest.mark.parametrize("name", ["default", "a", "x" * 100, "shop.example-1", "a:b", "größe"])
def test_usual_names_are_taken(name: str) -> None:
    assert Keys(pool=name, prefix=name).members == f"{name}:{{{name}}}:members"


def test_a_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(SettingsError, match="SMOOTHPOOL_POOL = 7"):
        Keys(pool=7)  # type: ignore[arg-type]
