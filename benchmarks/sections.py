"""From the JSON of each benchmark to its part of docs/performance.md and its plots.

One function a benchmark: it takes the figures and returns Markdown and a list of plots, which
`plots.py` draws. Every number comes from the figures.
"""

from __future__ import annotations

from statistics import median


def table(head, rows):
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def picture(name, alt):
    return f"![{alt}](benchmarks/{name}.svg)"


def promises(figures):
    """Return what the script says must hold, a list of {what, figure, holds}."""
    return figures.get("must_hold", []) if isinstance(figures, dict) else []


def held(figures, unit="", form=".1f"):
    """Say of each promise whether it held."""
    found = promises(figures)
    if not found:
        return ""
    rows = [
        [one["what"], f"{one['figure']:{form}}{unit}", "yes" if one["holds"] else "**no**"]
        for one in found
    ]
    return "\n\n" + table(["what must hold", "measured", "holds"], rows)


def number(value):
    if value < 10:
        return f"{value:.2f}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def selection(figures):
    names = {"ours": "smooth_wrr", "loop": "plain loop", "numpy": "loop in numpy"}
    rows, series = [], {}
    for kind, found in figures["situations"].items():
        for name, one in found.items():
            who, at, size = name.partition(" at ")
            if who in names and at:
                rows.append([kind, names[who], size, f"{1e6 * one['median']:.1f}"])
                if kind == "ten weights":
                    points = series.setdefault(names[who], [])
                    points.append((int(size.replace(",", "")), 1e6 * one["median"]))
    text = (
        "Processor time of one pick, against the plain loop over all proxies that gives the same "
        "sequence (nginx's way), and the loop in numpy where that is installed.\n\n"
        + table(["weights", "selector", "proxies", "µs a pick"], rows)
        + held(figures, " ×")
        + "\n\n"
        + picture("selection", "Time of a pick by number of proxies")
    )
    plot = {
        "kind": "lines",
        "name": "selection",
        "title": "Time of a pick, ten weights",
        "series": series,
        "x": "proxies",
        "y": "µs",
    }
    return text, [plot]


def _variants(figures):
    """Yield (proxies, variant, its figures), the control left out of no row."""
    for count, found in figures["sizes"].items():
        for name, one in found.items():
            yield int(count), name, one


def _dots(figures, what, title, x, name, reference, form):
    rows = [
        (f"{variant}: {count:,} proxies", *one[what])
        for count, variant, one in _variants(figures)
        if variant != "cycle"
    ]
    return {
        "kind": "dots",
        "name": name,
        "title": title,
        "rows": rows,
        "x": x,
        "reference": reference,
        "form": form,
    }


def middleware(figures):
    rows = [
        [
            f"{count:,}",
            variant,
            f"{median(one['cpu_us']):.0f}",
            "" if variant == "cycle" else _with_interval(one["more_us"], "{:+.0f}"),
        ]
        for count, variant, one in _variants(figures)
    ]
    text = (
        "Crawls with a download handler that does no I/O: what is left is Scrapy's engine and the "
        "middlewares. Compared with a middleware that only cycles over the list. `raw_call` is one "
        "that awaits a pick of `least_used` and does nothing else.\n\n"
        + table(["proxies", "", "µs a request", "more than cycling [95 %]"], rows)
        + "\n\n"
        + held(figures, " µs")
        + "\n\n"
        + picture("middleware", "Processor time a request more than cycling")
    )
    title = "Processor time a request, more than cycling over the list"
    return text, [_dots(figures, "more_us", title, "µs", "middleware", 0, "{:+.0f}")]


def _with_interval(values, form):
    middle, low, high = (form.format(value) for value in values)
    return f"{middle} [{low}, {high}]"


def crawls(figures):
    rows = [
        [
            f"{count:,}",
            variant,
            f"{median(one['cpu_us']):.0f}",
            "" if variant == "cycle" else _with_interval(one["ratio"], "{:.3f}"),
            f"{median(one['rate']):.0f}",
        ]
        for count, variant, one in _variants(figures)
    ]
    text = (
        "Whole crawls through a local responder that plays every proxy. Real sites and proxies "
        "take longer to answer, so the share of the pool is smaller there than here.\n\n"
        + table(["proxies", "", "µs a request", "× cycling [95 %]", "requests a second"], rows)
        + "\n\n"
        + held(figures, form=".3f")
        + "\n\n"
        + picture("crawls", "Processor time of whole crawls, as a multiple of cycling")
    )
    title = "Processor time of whole crawls, as a multiple of cycling over the list"
    return text, [_dots(figures, "ratio", title, "×", "crawls", 1, "{:.3f}")]


def delay(figures):
    rows = [
        [variant, f"{median(one['rate']):.0f}", _with_interval(one["speed"], "{:.3f}")]
        for _, variant, one in _variants(figures)
    ]
    text = (
        "The same with 5 ms of round trip before Redis (`least_used_ahead` is "
        "`SMOOTHPOOL_LOOK_AHEAD = 64`; the other two for comparison). A pick costs waiting then, "
        "which matters to a crawl that waits for nothing else, as this one.\n\n"
        + table(["", "requests a second", "speed, × cycling [95 %]"], rows)
        + held(figures, form=".3f")
    )
    return text, []


def workers(figures):
    rows, series = [], {}
    for row in figures["rows"]:
        spread = row["spread"]
        rows.append(
            [
                row["strategy"],
                row["workers"],
                f"{row['rate'][0]:.0f}",
                f"{row['cpu_us'][0]:.0f}",
                f"{row['server_us'][0]:.0f}",
                "" if spread is None else f"{spread:.0f}",
            ]
        )
        series.setdefault(row["strategy"], []).append((row["workers"], row["cpu_us"][0]))
    text = (
        f"{figures['requests']:,} requests over {figures['proxies']:,} proxies, split among the "
        "workers. *spread*: the most a proxy was picked less the least, by all together.\n\n"
        + table(
            ["", "workers", "requests a second", "µs a request", "µs of Redis", "spread"],
            rows,
        )
        + "\n\n"
        + picture("workers", "Processor time a request by number of workers")
    )
    plot = {
        "kind": "lines",
        "name": "workers",
        "title": "Processor time a request, all workers together",
        "series": series,
        "x": "workers",
        "y": "µs",
        "log_y": False,
        "ticks": sorted({row["workers"] for row in figures["rows"]}),
    }
    return text, [plot]


def server_time(figures):
    sizes = figures["sizes"]
    first = next(iter(sizes.values()))["µs"]
    rows = [[name, *(f"{one['µs'][name][0]:.1f}" for one in sizes.values())] for name in first]
    longest = [
        [name, *(f"{one['publish']['longest_ms'].get(name, 0):.1f}" for one in published)]
        for published in [[one for one in sizes.values() if "publish" in one]]
        for name in (published[0]["publish"]["longest_ms"] if published else ())
    ]
    with_publish = [size for size, one in sizes.items() if "publish" in one]
    text = (
        "Microseconds of the server in each script, of a pick, an outcome or a call "
        "(`nothing` is a script that does nothing). Sockets come on top.\n\n"
        + table(["members", *(f"{int(size):,}" for size in sizes)], rows)
        + "\n\nPublishing a list that differs in every tenth member: the longest single call of "
        "each script, which is how long the picks of others have to wait, in ms.\n\n"
        + table(["members", *(f"{int(size):,}" for size in with_publish)], longest)
        + held(figures, " µs")
        + "\n\n"
        + picture("server_time", "Server time by number of members")
    )
    shown = ("pick", "pick, 5 excluded", "report, 30 a call", "pick and report, 30 a batch")
    plot = {
        "kind": "lines",
        "name": "server_time",
        "title": "Time of the Redis server",
        "series": {
            name: [(int(size), one["µs"][name][0]) for size, one in sizes.items()] for name in shown
        },
        "x": "members",
        "y": "µs",
        "log_y": False,
    }
    return text, [plot]


def smoothness(figures):
    sets = figures["sets"]
    names = list(next(iter(sets.values())))

    def cell(one):
        return f"{number(one['deviation'])} / {one['run']}" if one else "-"

    rows = [[name, *(cell(found[name]) for found in sets.values())] for name in names]
    dots = [
        (f"{name}: {title}", one["deviation"], one["deviation"], one["deviation"])
        for title in ("10 equal", "zipf, 100")
        for name, one in sets.get(title, {}).items()
        if one
    ]
    text = (
        f"Over {figures['picks']:,} picks: the largest distance of any proxy at any moment from "
        "its ideal share, in picks, and the longest run of one proxy. A dash: no weights.\n\n"
        + table(["weights", *sets], rows)
        + "\n\n"
        + picture("smoothness", "Largest deviation from the ideal share")
    )
    plot = {
        "kind": "dots",
        "name": "smoothness",
        "title": "Largest deviation from the ideal share",
        "rows": dots,
        "x": "picks",
        "log_x": True,
        "form": "{:.1f}",
    }
    return text, [plot]


def memory(figures):
    rows = [
        [
            name,
            f"{one['first_mb']:.1f}",
            f"{one['last_mb']:.1f}",
            f"{one['grew_mb']:+.1f}",
            f"{one['more_mb']:+.1f}",
            f"{one['retries']:,}",
            f"{one['ejections']:,}",
        ]
        for name, one in figures["variants"].items()
    ]
    text = (
        f"Resident memory, MB, at request {figures['first']:,} and at request {figures['last']:,} "
        "of crawls over thousands of sites through thousands of logins that come and go, some of "
        "them failing.\n\n"
        + table(
            ["", "first", "last", "grew by", "more than cycling", "retries", "ejections"],
            rows,
        )
        + held(figures, " MB")
    )
    return text, []


def gaps(figures):
    rows = [
        [
            f"{int(count):,}",
            name,
            f"{one['gap_999_ms']:.1f}",
            f"{one['more_ms']:+.1f}",
            f"{one['busy_more_ms']:+.1f}",
            f"{one['gap_max_ms']:.1f}",
            f"{one['closing_ms']:.1f}",
        ]
        for count, found in figures["sizes"].items()
        for name, one in found.items()
    ]
    text = (
        f"How late the event loop was, ms: 99.9th percentile of {figures['rounds']} crawls each, "
        "and how much that is above cycling (*busy*: the part in which this process was at work). "
        f"*stalled*: Redis stood still for {figures['stall']:g} s, and every page arrived. At the "
        "close the table of all proxies is made, when nothing is on its way any more.\n\n"
        + table(
            ["proxies", "", "99.9th", "above cycling", "of it busy", "greatest", "at close"],
            rows,
        )
        + held(figures, " ms")
    )
    return text, []


def load(figures):
    size = figures["about"]["proxies"]
    reading = [
        [form, f"{seconds:.2f}", f"{additions:.1f}"]
        for form, (seconds, additions) in figures["parse"].items()
    ]
    pools = figures["pools"]
    steps = ["control", *_reloads(pools)]
    rows = [
        [name, what, _in(one, f"{what}, s", 1, ".2f"), *_of_reload(one, what)]
        for name, one in pools.items()
        for what in steps
        if any(key.startswith(f"{what}, ") for key in one)
    ]
    starts = [
        [name, _in(one, "open, s", 1, ".2f"), _in(one, "join, s", 1, ".2f")]
        for name, one in pools.items()
    ]
    text = (
        f"A list of {size:,} proxies: the processor time that its parsing takes (and how many "
        "million additions the machine does in that time), how long a pool takes to open with it "
        "and, with Redis, to join it, and how late the event loop is while it is replaced.\n\n"
        + table(["form", "s", "million additions"], reading)
        + "\n\n"
        + table(["pool", "opens, s", "is joined, s"], starts)
        + "\n\n"
        + table(["pool", "reload", "s", "late, 99.9 %, ms", "late at most, ms"], rows)
        + held(figures, " s", ".3f")
    )
    return text, []


def _reloads(pools):
    found = {}
    for one in pools.values():
        for key in one:
            what, _, kind = key.rpartition(", ")
            if kind == "s" and what not in ("open", "join"):
                found[what] = None
    return list(found)


def _in(figures, name, times, form):
    return f"{times * figures[name]:{form}}" if name in figures else ""


def _of_reload(figures, what):
    return (
        _in(figures, f"{what}, gap 99.9 %", 1e3, ".1f"),
        _in(figures, f"{what}, gap max", 1e3, ".1f"),
    )


def connections(figures):
    about = figures["about"]
    variants = {"keep": "as it comes", "close": "closed", "bound": f"at most {about['bound']} idle"}
    rows = []
    for row in figures["rows"]:
        rounds = row["rounds"]

        def middle(what, rounds=rounds):
            return median(one[what] for one in rounds)

        rows.append(
            [
                f"{row['handler']}, {row['pages']}",
                variants[row["variant"]],
                f"{middle('opened'):,.0f}",
                f"{middle('peak'):,.0f}",
                f"{middle('left'):,.0f}",
                f"{middle('memory') / 1e6:.1f}",
                f"{1e3 * middle('cpu') / middle('requests'):.2f}",
            ]
        )
    text = (
        f"Sockets and memory of {about['requests']:,} requests over {about['proxies']:,} proxies, "
        "with and without what the pool can do about idle connections "
        "([connections.md](connections.md) says what to choose).\n\n"
        + table(
            [
                "handler",
                "idle connections",
                "opened",
                "peak",
                "left",
                "grew by, MB",
                "ms a request",
            ],
            rows,
        )
    )
    return text, []
