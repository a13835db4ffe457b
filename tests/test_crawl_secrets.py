"""Does a password show up anywhere but where it must be sent?"""

from __future__ import annotations

import os
import time

import pytest
from redis import Redis

from crawl import Running
from farm import Answer
from farm.redis_server import RedisServer

SECRET = "S3CR3T"
USER = "us3rn4me"


def files_with(folder, words) -> list[str]:
    found = []
    for where, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(where, name)
            with open(path, "rb") as file:
                content = file.read()
            if any(word.encode() in content for word in words):
                found.append(path)
    return found


def held_by(client: Redis, key: str) -> str:
    """Return everything that lies under a key, whatever its type."""
    kind = client.type(key).decode()
    if kind == "hash":
        return str(client.hgetall(key))
    if kind == "zset":
        return str(client.zrange(key, 0, -1))
    assert kind == "string", kind
    return str(client.get(key))


@pytest.mark.parametrize("strategy", ["smooth_wrr", "least_used"])
def test_the_password_is_nowhere(farm, mode, strategy, tmp_path):
    """DEBUG log, a dead proxy, a wrong login, Redis gone mid-run, cache and JOBDIR on."""
    site = farm.site(tls=True)
    good = farm.proxy("good", login=(USER, f"{SECRET}-good"))
    dead = farm.proxy("dead", login=(USER, f"{SECRET}-dead"), listening=False)
    refusing = farm.proxy("refusing", logins=[("other", "x")])
    banning = farm.proxy("banning", login=(USER, f"{SECRET}-ban"), behaviour=Answer(403))
    proxies = [good.url, dead.url, refusing.url_for(USER, f"{SECRET}-wrong"), banning.url]
    site.respond("/slow-page", delay=0.1)
    urls = [f"{site.url}/slow-page?{n}" for n in range(60)]
    urls += [f"{site.tls_url}/page/{n}" for n in range(1, 20)]
    with RedisServer(args=["--requirepass", f"{SECRET}-redis"]) as server:
        port = server.port
        redis_url = f"redis://:{SECRET}-redis@127.0.0.1:{port}/0"
        settings = {
            "SMOOTHPOOL_PROXIES": proxies,
            "SMOOTHPOOL_STRATEGY": strategy,
            "SMOOTHPOOL_STATS_PER_PROXY": True,
            "SMOOTHPOOL_WAIT_TIMEOUT": 2,
            "JOBDIR": str(tmp_path / "job"),
            "HTTPCACHE_ENABLED": True,
            "HTTPCACHE_DIR": str(tmp_path / "cache"),
            "CONCURRENT_REQUESTS": 4,
            **mode,
        }
        if strategy == "least_used":
            settings["SMOOTHPOOL_REDIS_URL"] = redis_url
        with Running(urls, settings, folder=tmp_path / "run") as running:
            farm.wait_until(lambda: len(site.hits) > 10, 60)
            if strategy == "least_used":
                client = Redis(port=port, password=f"{SECRET}-redis")
                keys = [key.decode() for key in client.keys("*")]
                assert "smoothpool:{default}:members" in keys
                for key in keys:
                    assert SECRET not in key
                    assert USER not in key
                    held = held_by(client, key)
                    if key.endswith(":members"):
                        assert SECRET in held
                    else:
                        assert SECRET not in held, key
                        assert USER not in held, key
                ids = str(client.hkeys("smoothpool:{default}:members"))
                assert SECRET not in ids
                assert USER not in ids
                client.close()
                server.kill()
                running.wait_for("has no proxy for a request")
            else:
                farm.wait_until(lambda: len(site.hits) > 30, 60)
            time.sleep(0.3)
            running.interrupt()
            done = running.wait()
    assert done.exit_code == 0, done.log[-3000:]
    for word in (SECRET, USER):
        assert word not in done.log
        assert word not in str(done.result)
    (tmp_path / "run" / "job_settings.json").unlink()  # where the test itself wrote it down
    assert files_with(tmp_path, [SECRET, USER]) == []
    assert "Proxy-Authorization" not in "".join(files_with(tmp_path, ["Proxy-Authorization"]))
    assert files_with(tmp_path / "cache", ["Proxy-Authorization"]) == []
    assert done.stat("outcome/proxy_error") > 0


def test_a_bad_line_does_not_give_the_password_away(farm, mode, tmp_path):
    path = tmp_path / "list"
    path.write_text(f"http://{USER}:{SECRET}@127.0.0.1:99999\n{USER}:{SECRET}@nowhere\n")
    settings = {"SMOOTHPOOL_PROXIES_FILE": str(path), **mode}
    with Running([farm.site().url], settings) as running:
        done = running.wait()
    assert done.exit_code == 1
    assert "line 1" in done.log
    assert "line 2" in done.log
    assert SECRET not in done.log
    assert USER not in done.log
