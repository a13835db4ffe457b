"""Spiders and middlewares of ``test_crawl_connections``."""

from __future__ import annotations

import resource

from spiders import ChainSpider, ListSpider


class _Headers:
    """Record the ``Connection`` header that the request has when its page arrives."""

    def parse(self, response):
        yield from super().parse(response)
        self.arrived[-1]["connection"] = response.request.headers.get("Connection", b"").decode()


class HeadersSpider(_Headers, ListSpider):
    name = "headers"


class HeadersChainSpider(_Headers, ChainSpider):
    name = "headers_chain"


class FewFilesSpider(ListSpider):
    """Crawl in a process that may open few files."""

    name = "few_files"

    def __init__(self, *args, **kwargs):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
        super().__init__(*args, **kwargs)
