"""Who stands between the pool's middleware and the downloader?"""

from __future__ import annotations

import pytest
from scrapy.downloadermiddlewares.httpcache import HttpCacheMiddleware
from scrapy.utils.test import get_crawler

from scrapy_smoothpool import SmoothPoolMiddleware
from scrapy_smoothpool.checks import others_after


class Mine:
    pass


class MyCache(HttpCacheMiddleware):
    pass


@pytest.mark.parametrize(
    ("own", "found"),
    [
        ({}, []),
        ({Mine: 609}, []),
        ({Mine: 611}, [Mine]),
        ({Mine: 605, MyCache: 900, HttpCacheMiddleware: None}, [MyCache]),
    ],
)
def test_who_comes_after_it_and_is_not_scrapys(own, found):
    crawler = get_crawler(
        settings_dict={"DOWNLOADER_MIDDLEWARES": {SmoothPoolMiddleware: 610, **own}}
    )
    assert others_after(crawler.settings, SmoothPoolMiddleware) == found
