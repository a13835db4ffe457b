"""Every recorded case of a proxy list, as vendors, tools and users write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scrapy_smoothpool.exceptions import ProxyListError
from scrapy_smoothpool.parsing import parse_proxies

CASES = json.loads((Path(__file__).parent / "cases" / "proxy-lines.json").read_text("utf-8"))


@pytest.mark.parametrize("case", CASES["cases"], ids=lambda case: case["kind"])
def test_recorded_list(case: dict[str, Any]) -> None:
    expected = case["expect"]
    if "refuse" in expected:
        with pytest.raises(ProxyListError) as caught:
            parse_proxies(case["text"])
        assert caught.value.errors
        return
    proxies = parse_proxies(case["text"])
    found = [
        {key: getattr(proxy, key) for key in want}
        for proxy, want in zip(proxies, expected["proxies"], strict=True)
    ]
    assert found == expected["proxies"]
