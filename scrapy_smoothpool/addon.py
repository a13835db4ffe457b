"""The add-on: one line in ``ADDONS`` sets everything up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from .checks import ORDER
from .exceptions import SettingsError
from .extension import SmoothPoolExtension
from .middleware import SmoothPoolMiddleware

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings


class Addon:
    """Enables the middleware and the extension unless the user has placed them.

    ``ADDONS = {"scrapy_smoothpool.Addon": 500}``. An add-on is applied after a
    spider's ``custom_settings``, which replaces ``DOWNLOADER_MIDDLEWARES`` as a
    whole and would drop a middleware that stands there.
    """

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the add-on; refuse to stand in for a component, where it would do nothing."""
        if _has_stats(crawler):
            raise SettingsError(
                "scrapy_smoothpool.Addon stands in EXTENSIONS or a middleware setting, where it "
                'does nothing; accepted: ADDONS = {"scrapy_smoothpool.Addon": 500}'
            )
        return cls()

    def update_settings(self, settings: BaseSettings) -> None:
        """Add both components where they are not named yet; the user's order wins."""
        settings.setdefault_in_component_priority_dict(
            "DOWNLOADER_MIDDLEWARES", SmoothPoolMiddleware, ORDER
        )
        settings.setdefault_in_component_priority_dict("EXTENSIONS", SmoothPoolExtension, ORDER)


def _has_stats(crawler: Crawler) -> bool:
    """Say whether the crawler is past its add-ons: the stats collector is built between the two."""
    try:
        return crawler.stats is not None
    except RuntimeError:  # from Scrapy 2.18 on an attribute that is not set yet raises
        return False
