"""Do two workers share a pool in whatever Redis there is, also while that changes under them?"""

from __future__ import annotations

import time
from contextlib import ExitStack

import pytest

from crawl import Running
from redis_setups import PASSWORD, SETUPS, USER

PAGES, WORKERS, PROXIES = 500, 2, 10


@pytest.mark.parametrize("kind", SETUPS)
def test_two_workers_crawl_500_pages(farm, mode, kind):
    site, proxies = farm.site(), farm.many(PROXIES)
    site.respond("/page/1", delay=0.3)
    requests = [
        {"url": f"{site.url}/page/1?{n}", "headers": {"X-Tag": str(n)}} for n in range(PAGES)
    ]
    with ExitStack() as stack:
        setup = stack.enter_context(SETUPS[kind]())
        settings = {
            "SMOOTHPOOL_STRATEGY": "least_used",
            "SMOOTHPOOL_REDIS_URL": setup.url,
            "SMOOTHPOOL_PROXIES": [proxy.url for proxy in proxies],
            "LOG_LEVEL": "INFO",
            **setup.settings,
            **mode,
        }
        workers = [
            stack.enter_context(Running(requests[n::WORKERS], settings)) for n in range(WORKERS)
        ]
        for worker in workers:
            worker.wait_for("Pool 'default'")
        time.sleep(1)
        setup.disturb()
        done = [worker.wait(90) for worker in workers]
        counts = setup.counts()
    for each in done:
        assert each.exit_code == 0
        assert each.finish_reason == "finished", each.log[-3000:]
        assert "Traceback" not in each.log
        assert USER not in each.log
        assert PASSWORD not in each.log
    tags = sorted(int(page["tag"]) for each in done for page in each.arrived)
    assert tags == list(range(PAGES))
    assert site.direct == []
    assert set(counts) == {proxy.url for proxy in proxies}
    assert max(counts.values()) - min(counts.values()) <= WORKERS
    if kind not in ("sentinel", "cluster"):  # those may lose or repeat some
        assert sum(counts.values()) == PAGES
