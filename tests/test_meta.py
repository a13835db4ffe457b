"""Which site does a request belong to?"""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import Request

from scrapy_smoothpool.meta import SITE, site_of

HOSTS = st.sampled_from(["site.test", "SITE.test", "10.0.0.1", "[::1]", "xn--bcher-kva.test"])
LOGINS = st.sampled_from(["", "user@", "user:pa%3Ass@"])
PORTS = st.sampled_from(["", ":80", ":8080"])
RESTS = st.sampled_from(["", "/", "/a//b", "?q=//x/y", "#f", "/p?u=http://other.test/", "//c"])


@given(st.sampled_from(["http", "https"]), LOGINS, HOSTS, PORTS, RESTS)
def test_it_is_the_host_as_a_parser_of_urls_sees_it(scheme, login, host, port, rest):
    request = Request(f"{scheme}://{login}{host}{port}{rest}")
    assert site_of(request) == urlsplit(request.url).hostname


@pytest.mark.parametrize("site", ["shop", "", 7])
def test_a_request_may_name_it(site):
    assert site_of(Request("http://site.test/", meta={SITE: site})) == str(site)
