"""Every page of the shop, by its links."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import scrapy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from scrapy.http import Response


class PagesSpider(scrapy.Spider):
    """Crawls ``-a site=URL``; of several workers, each takes its own ``-a part=K/N``.

    The links on the front page are dealt out among the workers; what lies below a link
    is reached by that link only, so together they see every page once.
    """

    name = "pages"

    def __init__(self, site: str = "", part: str = "0/1", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not site:
            raise ValueError("say where the shop is: -a site=http://127.0.0.1:PORT")
        number, _, workers = part.partition("/")
        self.site = site
        self.number, self.workers = int(number), int(workers)

    async def start(self) -> AsyncIterator[Any]:
        """Ask for the front page."""
        yield scrapy.Request(self.site, callback=self.front)

    def front(self, response: Response, **_: Any) -> Iterator[Any]:
        """Follow this worker's share of the front page's links."""
        if self.number == 0:
            yield self.item(response)
        links = response.css("a::attr(href)").getall()
        yield from response.follow_all(links[self.number :: self.workers], self.parse)

    def parse(self, response: Response, **_: Any) -> Iterator[Any]:
        """Keep the page and follow all of its links."""
        yield self.item(response)
        yield from response.follow_all(response.css("a::attr(href)").getall(), self.parse)

    @staticmethod
    def item(response: Response) -> dict[str, str | None]:
        """Return what is kept of a page."""
        return {"url": response.url, "title": response.css("title::text").get()}
