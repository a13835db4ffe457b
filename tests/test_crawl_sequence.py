"""Is the sequence that a crawl really uses nginx's, pick for pick?"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from crawl import TESTS, crawl
from farm import Close, Farm, ForwardProxy

CASES = json.loads((TESTS / "cases" / "nginx-smooth-wrr.json").read_text())["cases"]


def puts_a_peer_out(case) -> bool:
    """nginx skips a peer for good once it has failed max_fails times; a crawl does not."""
    pairs = zip(case["picks"], case["failing"], strict=True)
    failures = Counter(pick for pick, failing in pairs if pick in failing)
    return any(count >= case["max_fails"] for count in failures.values())


WHOLE = [(number, case) for number, case in enumerate(CASES) if not puts_a_peer_out(case)]
NGINX = {
    "SMOOTHPOOL_PENALTY": "nginx",
    "SMOOTHPOOL_WEIGHT_SCALE": 1,
    "SMOOTHPOOL_EJECT_AFTER": 0,
    "SMOOTHPOOL_RETRY_TIMES": 0,
    "RETRY_ENABLED": False,
    "CONCURRENT_REQUESTS": 1,
}


def tagged(url: str, count: int) -> list[dict[str, object]]:
    return [{"url": f"{url}/page/1?{n}", "headers": {"X-Tag": str(n)}} for n in range(count)]


def used(proxies: Mapping[str, ForwardProxy], count: int) -> list[str]:
    """The proxy that saw each tag first: Twisted may repeat a GET on a reused connection."""
    first: dict[int, tuple[float, str]] = {}
    for name, proxy in proxies.items():
        for hit in proxy.hits:
            number = int(hit.tag or -1)
            first[number] = min(first.get(number, (hit.time, name)), (hit.time, name))
    return [first[n][1] for n in range(count)]


def test_cases_with_failures_are_among_those_crawled():
    assert len(WHOLE) >= 10
    assert any(any(case["failing"]) for _, case in WHOLE)


def run(farm: Farm, weights: Mapping[str, int], failing: Sequence[Sequence[str]], max_fails: int):
    site = farm.site()
    proxies = {name: farm.proxy(name) for name in weights}
    for name, proxy in proxies.items():
        mine = {str(n) for n, names in enumerate(failing) if name in names}
        proxy.behaviour = lambda hit, mine=mine: Close() if hit.tag in mine else None
    done = crawl(
        tagged(site.url, len(failing)),
        {
            **NGINX,
            "SMOOTHPOOL_PROXIES": {proxies[name].url: weights[name] for name in weights},
            "SMOOTHPOOL_MAX_FAILS": max_fails,
            "LOG_LEVEL": "INFO",
        },
        timeout=120,
    )
    assert done.exit_code == 0, done.log[-3000:]
    assert site.direct == []
    return used(proxies, len(failing)), done


@pytest.mark.parametrize(("number", "case"), WHOLE, ids=[f"case{n}" for n, _ in WHOLE])
def test_crawl_follows_nginx(farm, number, case):
    picks, _ = run(farm, case["weights"], case["failing"], case["max_fails"])
    assert picks == case["picks"]


@pytest.mark.parametrize(
    ("weights", "expected"),
    [({"a": 5, "b": 1, "c": 1}, "aabacaa"), ({"A": 3, "B": 2, "C": 1}, "ABACBAABACBA")],
)
def test_worked_tables(farm, mode, weights, expected):
    site = farm.site()
    proxies = {name: farm.proxy(name) for name in weights}
    done = crawl(
        tagged(site.url, len(expected)),
        {
            "SMOOTHPOOL_PROXIES": {proxies[n].url: w for n, w in weights.items()},
            "CONCURRENT_REQUESTS": 1,
            **mode,
        },
    )
    assert "".join(used(proxies, len(expected))) == expected
    shares = {row[0]: (row[1], row[3], row[6]) for row in done.table()}
    for name, weight in weights.items():
        picks = str(expected.count(name))
        assert shares[proxies[name].url] == (str(weight), picks, picks)


def test_shuffle_starts_spiders_on_different_proxies(farm):
    site = farm.site()
    proxies = farm.many(30)
    firsts = set()
    for _ in range(4):
        done = crawl(
            [site.url],
            {"SMOOTHPOOL_PROXIES": [p.url for p in proxies], "SMOOTHPOOL_SHUFFLE": True},
        )
        firsts.update(done.proxies)
    assert len(firsts) > 1  # all four alike: one in 27,000


def test_logins_on_one_gateway_pick_like_separate_ports(farm):
    site = farm.site()
    weights = [4, 2, 1]
    separate = farm.many(3)
    gateway = farm.proxy("gateway", logins={f"user{i}": f"pw{i}" for i in range(3)})
    sequences = []
    for urls in ([p.url for p in separate], gateway.urls):
        done = crawl(
            tagged(site.url, 21),
            {
                "SMOOTHPOOL_PROXIES": dict(zip(urls, weights, strict=True)),
                "CONCURRENT_REQUESTS": 1,
            },
        )
        order = [row[0] for row in done.table()]
        sequences.append([order.index(proxy) for proxy in done.proxies])
    assert len(sequences[0]) == 21
    assert sequences[0] == sequences[1]


def test_cached_pages_use_up_no_turn(farm, tmp_path):
    """A pick whose request never went out stays for the next (design rule 4)."""
    site = farm.site()
    proxies = {name: farm.proxy(name) for name in "abc"}
    settings = {
        "SMOOTHPOOL_PROXIES": {proxies["a"].url: 5, proxies["b"].url: 1, proxies["c"].url: 1},
        "CONCURRENT_REQUESTS": 1,
        "HTTPCACHE_ENABLED": True,
        "HTTPCACHE_DIR": str(tmp_path / "cache"),
    }
    pages = tagged(site.url, 14)
    crawl(pages[::2], settings)
    for proxy in proxies.values():
        proxy.clear()
    done = crawl(pages, settings)
    assert sum("cached" in page["flags"] for page in done.arrived) == 7
    assert "".join(name for name in used_in_order(proxies)) == "aabacaa"
    assert done.stat("tickets") == 7
    assert sum(int(row[3]) for row in done.table()) == 7


def used_in_order(proxies: Mapping[str, ForwardProxy]) -> list[str]:
    hits = [(hit.time, name) for name, proxy in proxies.items() for hit in proxy.hits]
    return [name for _, name in sorted(hits)]
