"""The add-on: one line in ``ADDONS`` sets everything up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .checks import ORDER
from .extension import SmoothPoolExtension
from .middleware import SmoothPoolMiddleware

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings


class Addon:
    """Enables the middleware and the extension unless the user has placed them.

    ``ADDONS = {"scrapy_smoothpool.Addon": 500}``. An add-on is applied after a
    spider's ``custom_settings``, which replaces ``DOWNLOADER_MIDDLEWARES`` as a
    whole and would drop a middleware that stands there.
    """

    def update_settings(self, settings: BaseSettings) -> None:
        """Add both components where they are not named yet; the user's order wins."""
        settings.setdefault_in_component_priority_dict(
            "DOWNLOADER_MIDDLEWARES", SmoothPoolMiddleware, ORDER
        )
        settings.setdefault_in_component_priority_dict("EXTENSIONS", SmoothPoolExtension, ORDER)
