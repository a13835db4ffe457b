"""Does a request that lost its proxy on the way ever go out directly?"""

from __future__ import annotations

import logging

import pytest
from scrapy import Request, Spider
from scrapy.utils.test import get_crawler

from scrapy_smoothpool import SmoothPoolMiddleware
from scrapy_smoothpool import meta as keys
from scrapy_smoothpool.checks import is_usable_proxy
from store.store_helpers import in_loop, stop_loop

ADDRESS = "http://10.0.0.1:8080"


@pytest.fixture(scope="module", autouse=True)
def loop():
    yield
    stop_loop()


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("lost", [{}, {"proxy": None}, {"proxy": ""}, {"proxy": "http://"}])
@in_loop
async def test_it_is_put_back_whether_or_not_the_proxy_is_still_listed(lost, listed, caplog):
    settings = {
        "SMOOTHPOOL_PROXIES": [ADDRESS],
        "DOWNLOADER_MIDDLEWARES": {SmoothPoolMiddleware: 610},
        "DOWNLOAD_TIMEOUT": 15,
    }
    middleware = SmoothPoolMiddleware.from_crawler(get_crawler(Spider, settings))
    await middleware._pool.open()
    assigned = (ADDRESS if listed else "http://10.0.0.2:8080", 1, "site.test")
    request = Request("http://site.test/", meta={keys.ASSIGNED: assigned, **lost})
    with caplog.at_level(logging.ERROR):
        middleware._sent(request)
    assert is_usable_proxy(request.meta["proxy"])
    assert (request.meta["proxy"] == ADDRESS) is listed
    assert "has lost its proxy on the way" in caplog.text
