"""What each Lua script costs the Redis server, at 10 to 1,000,000 members.

Measures the server's own time (`INFO commandstats`: microseconds within EVALSHA, the commands it
calls included). Calls come 20 at a time, as from many workers: a server with little to do takes
longer over each (its caches are cold then, `pick, alone`), which matters to nobody. Given are the
medians of the rounds and their 95 % intervals. The arguments are made by the package's own
functions.

    nothing                      a script that does nothing: what any of them costs
    pick                         least_used.lua
    pick, alone                  the same, one call at a time
    pick, 16 or 64 a call        least_used_many.lua, a pick
    pick, 5 excluded             least_used_excluding.lua
    report, N a call             report_outcomes.lua with N outcomes, 1 in 50 a failure, an outcome.
                                 A worker gathers them for 50 ms: at 100 requests a second 5, at
                                 600 a second 30. Members have a window full of outcomes already
    report, first outcomes       the same, 30 a call, of members that had none before
    pick and report              a pick for each request, and its outcome in a batch of 5 or 30
    ejection, return             a report that puts a member out; a probe's success
    look, nobody due             take_probe.lua, which each worker calls about once a second
    probe                        the same with somebody due
    raise to minimum             raise_to_minimum.lua

Then a list is published that differs in every tenth member: the longest single call of each script
(`SLOWLOG`), which is how long other workers' picks stand still. At 1,000,000 members the list is
laid out by plain pipelines, since publishing it takes a minute, and no other is published.

Must hold: a pick at most 6 µs at 100,000 members, with its outcome's report at most 12 µs.

Does not measure: the network, the client, reading and writing sockets on the server (about as
much again as a pick), persistence, a cluster, members longer than these 30 characters.

Usage: python benchmarks/server_time.py [--quick] [--sizes N …] [--rounds N] [--calls N]
                                        [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time
from pathlib import Path

from common import interval, write
from redis import Redis

from farm.redis_server import RedisServer
from scrapy_smoothpool.shared_judge import health_rules
from scrapy_smoothpool.store import scripts
from scrapy_smoothpool.store.connection import RedisConnection
from scrapy_smoothpool.store.keys import Keys
from scrapy_smoothpool.store.publish import publish
from scrapy_smoothpool.store.verdicts import Delivery, Happened, Kind

LARGE = 100_000
MUST_HOLD = {"pick": 6.0, "pick and report, 30 a batch": 12.0}  # µs at LARGE
PUBLISHED_AT_MOST = 100_000
RULES = health_rules(eject_after=8, eject_time=30.0, eject_time_max=1_800.0, max_percent=50)
RECORD = f"active 0 0 {'0' * 20} 0 0 -"
WORKER = "0123456789abcdef"
AT_ONCE = 20
"""Calls in one pipeline."""
FAILING = 50
"""One outcome in so many is a failure."""


class Sent(Exception):
    """A script was called; nothing was."""


class Recorder:
    """Stands in for the connection: notes what the package would send."""

    async def run(self, script, keys, args=()):
        self.call = ("EVALSHA", script.sha, len(keys), *keys, *args)
        raise Sent

    def of(self, function, *args, **kwargs):
        """Return the call that *function* makes."""
        try:
            asyncio.new_event_loop().run_until_complete(function(self, *args, **kwargs))
        except Sent:
            return self.call
        raise AssertionError(f"{function.__name__} called no script")


def ids(n, start=0):
    return [f"http://10.{i >> 16}.{i >> 8 & 255}.{i & 255}:3128" for i in range(start, start + n)]


def lay_out(redis, keys, n):
    """Fill the keys of a pool that has been in use for a while, by plain pipelines."""
    everybody = ids(n)
    for at in range(0, n, 10_000):
        some = everybody[at : at + 10_000]
        redis.zadd(keys.allocations, {member: 1_000 + i % 2 for i, member in enumerate(some)})
        redis.hset(keys.members, mapping={member: f"{member} w1" for member in some})
        redis.hset(keys.health, mapping=dict.fromkeys(some, RECORD))
    redis.set(keys.fingerprint, "f")
    redis.set(keys.epoch, 1)
    return everybody


class Bench:
    """Calls the scripts of one pool and asks the server what it took."""

    def __init__(self, redis, keys, members):
        self.redis, self.keys, self.members = redis, keys, members
        self.turns = itertools.cycle(members).__next__
        self.number = itertools.count(1).__next__
        self.recorder = Recorder()
        for script in scripts.SCRIPTS.values():
            redis.script_load(script.text)

    def of(self, function, *args, **kwargs):
        return self.recorder.of(function, self.keys, *args, **kwargs)

    def report(self, members, kind=None, epoch=1):
        """Return the call that reports an outcome of each, some of them failures unless *kind*."""
        outcomes = [
            Happened(member, epoch, kind or (Kind.SUCCESS if i % FAILING else Kind.FAULTY))
            for i, member in enumerate(members, self.number())
        ]
        delivery = Delivery(WORKER, self.number())
        return self.of(scripts.report_outcomes, RULES, outcomes, delivery)

    def took(self, calls, at_once=AT_ONCE):
        """Make the calls; return the server's microseconds in all of them, and the replies."""
        self.redis.config_resetstat()
        replies = []
        for at in range(0, len(calls), at_once):
            pipeline = self.redis.pipeline(transaction=False)
            for call in calls[at : at + at_once]:
                pipeline.execute_command(*call)
            replies += pipeline.execute()
        return self.redis.info("commandstats")["cmdstat_evalsha"]["usec"], replies

    def same(self, calls, call, at_once=AT_ONCE):
        """µs of one call, made again and again."""
        calls = max(1, calls)
        return self.took([call] * calls, at_once)[0] / calls

    def reports(self, calls, batch):
        """µs of an outcome."""
        number = max(2, calls // batch)
        made = [self.report([self.turns() for _ in range(batch)]) for _ in range(number)]
        return self.took(made)[0] / (number * batch)

    def first_reports(self, calls, batch):
        """µs of an outcome of members that have had none; afterwards they have had many."""
        number = max(1, min(calls, len(self.members)) // batch)
        batches = [[self.turns() for _ in range(batch)] for _ in range(number)]
        for members in batches:
            self.redis.hdel(self.keys.health, *members)
        took = self.took([self.report(members) for members in batches])[0]
        for members in batches:
            self.redis.hset(self.keys.health, mapping=dict.fromkeys(members, RECORD))
        return took / (number * batch)

    def picks_and_reports(self, calls, batch):
        """µs of a pick and its outcome, which is told with those of the picks around it."""
        pick, picked, took = self.of(scripts.least_used), [], 0
        rounds = max(2, calls // batch)
        for _ in range(rounds + 1):
            made = [pick] * batch
            if picked:
                made.append(self.report(picked))
            spent, replies = self.took(made, at_once=len(made))
            took += spent if picked else 0
            picked = [member.decode() for member in replies[:batch]]
        return took / (rounds * batch)

    def out_and_back(self, calls):
        """µs of a report that puts out, of a look with somebody due, of a return."""
        out = probe = back = 0
        for _ in range(calls):
            member, epoch = self.turns(), int(self.redis.get(self.keys.epoch))
            out += self.took([self.report([member], Kind.LOGIN, epoch)])[0]
            self.redis.zadd(self.keys.wakes, {member: 1})  # due at once
            probe += self.took([self.of(scripts.take_probe, 60.0, epoch, 1)])[0]
            back += self.took([self.report([member], Kind.SUCCESS, epoch + 1)])[0]
            if self.redis.zcard(self.keys.benched):
                raise SystemExit(f"{member} is still out")
        return {"ejection": out / calls, "probe": probe / calls, "return": back / calls}

    def round(self, calls):
        """Measure everything once."""
        pick = self.of(scripts.least_used)
        nothing = ("EVALSHA", self.redis.script_load("return 1"), 0)
        least = [member.decode() for member in self.redis.zrange(self.keys.allocations, 0, 4)]
        epoch = int(self.redis.get(self.keys.epoch))
        figures = {
            "nothing": self.same(calls, nothing),
            "pick": self.same(calls, pick),
            "pick, alone": self.same(calls // 4, pick, at_once=1),
        }
        for number in (16, 64):
            many = self.of(scripts.least_used_many, number)
            figures[f"pick, {number} a call"] = self.same(calls // number, many) / number
        excluding = self.of(scripts.least_used_excluding, least)
        figures["pick, 5 excluded"] = self.same(calls, excluding)
        for batch in (1, 5, 30, 500):
            figures[f"report, {batch} a call"] = self.reports(calls, batch)
        figures["report, first outcomes"] = self.first_reports(calls, 30)
        for batch in (5, 30):
            figures[f"pick and report, {batch} a batch"] = self.picks_and_reports(calls, batch)
        look = self.of(scripts.take_probe, 60.0, epoch, 1)
        figures["look, nobody due"] = self.same(calls // 4, look)
        raised = self.of(scripts.raise_to_minimum, self.members[0], [self.members[0]])
        figures["raise to minimum"] = self.same(calls // 4, raised)
        return {**figures, **self.out_and_back(max(1, calls // 50))}


def longest_calls(redis, url, n):
    """Publish a list in place of another; return ms of the longest call of each script, and all."""
    keys = Keys(pool=f"published{n}")
    names = {script.sha: name for name, script in scripts.SCRIPTS.items()}
    first, second = ids(n), ids(n)
    second[::10] = ids(len(second[::10]), start=2_000_000)

    async def both():
        connection = RedisConnection(url)
        await publish(connection, keys, {m: f"{m} w1" for m in first}, "first")
        redis.config_set("slowlog-max-len", 100_000)
        redis.config_set("slowlog-log-slower-than", 0)
        redis.slowlog_reset()
        started = time.monotonic()
        await publish(connection, keys, {m: f"{m} w1" for m in second}, "second")
        took = time.monotonic() - started
        redis.config_set("slowlog-log-slower-than", -1)
        await connection.aclose()
        return took

    took = asyncio.run(both())
    longest, calls = {}, {}
    for entry in redis.slowlog_get(100_000):
        words = entry["command"].split()
        if words[0] == b"EVALSHA":
            name = names[words[1].decode()]
            longest[name] = max(longest.get(name, 0.0), entry["duration"] / 1_000)
            calls[name] = calls.get(name, 0) + 1
    return {"seconds": took, "longest_ms": longest, "calls": calls}


def measure(size, rounds, calls, server):
    with Redis.from_url(server.url) as redis:
        redis.flushall()
        keys = Keys(pool=f"bench{size}")
        bench = Bench(redis, keys, lay_out(redis, keys, size))
        bench.round(calls // 4)  # warms up
        found = [bench.round(calls) for _ in range(rounds)]
        figures = {"µs": {name: interval([one[name] for one in found]) for name in found[0]}}
        if size <= PUBLISHED_AT_MOST:
            redis.flushall()
            figures["publish"] = longest_calls(redis, server.url, size)
        redis.flushall()
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 1_000, LARGE, 1_000_000])
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--calls", type=int, help="picks in each round")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    rounds = args.rounds or (3 if args.quick else 7)
    calls = args.calls or (500 if args.quick else 3_000)
    sizes, held = {}, []
    # Nothing of the server's own may come in between.
    with RedisServer(args=("--hz", "1", "--slowlog-log-slower-than", "-1")) as server:
        for size in args.sizes:
            figures = sizes[size] = measure(size, rounds, calls, server)
            print(f"\n{size:,} members, µs of the server: median  [95 % interval]")
            for name, (middle, low, high) in figures["µs"].items():
                print(f"    {name:32}{middle:8.2f}  [{low:.2f}, {high:.2f}]", flush=True)
            for name, longest in figures.get("publish", {}).get("longest_ms", {}).items():
                print(f"    publishing, longest {name:18}{longest:8.2f} ms", flush=True)
    for name, most in MUST_HOLD.items():
        if LARGE in sizes:
            figure = sizes[LARGE]["µs"][name][0]
            what = f"{name} at {LARGE:,} members: at most {most:g} µs"
            held.append({"what": what, "figure": figure, "holds": figure <= most})
            print(f"{'holds ' if figure <= most else 'BROKEN'}  {what}: {figure:.2f}")
    write(args.json, {"rounds": rounds, "calls": calls, "sizes": sizes, "must_hold": held})


if __name__ == "__main__":
    main()
