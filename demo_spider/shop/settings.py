"""A Scrapy project as anybody would write it; the one line that matters is ``ADDONS``."""

from __future__ import annotations

BOT_NAME = "shop"
SPIDER_MODULES = ["shop.spiders"]
NEWSPIDER_MODULE = "shop.spiders"

ADDONS = {"scrapy_smoothpool.Addon": 500}

# Strategy, list and Redis come with the command line here (-s SMOOTHPOOL_…), since the
# demo's proxies are born a moment before the crawl. A short rest lets it show a return.
SMOOTHPOOL_EJECT_TIME = 1

ROBOTSTXT_OBEY = True
CONCURRENT_REQUESTS_PER_DOMAIN = 8
DOWNLOAD_DELAY = 0
DOWNLOAD_TIMEOUT = 10
TELNETCONSOLE_ENABLED = False
LOG_LEVEL = "INFO"
