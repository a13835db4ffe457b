"""Writes docs/performance.md and its plots from the JSON that `run_all.py` left.

Usage: python benchmarks/page.py [--results FOLDER] [--page FILE] [--no-plots]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from common import HERE, ROOT
from parts import PARTS

HEAD = """# What the pool costs, and what it brings

{note}Every figure and plot on this page was made by the scripts in `benchmarks/`. The one command
that makes them again is

```
{command}
```

which takes ten to fifteen minutes on two idle cores (memory over 200,000 requests takes as long
again: `make bench LONG=1`). Each script's docstring says what it measures
and what it does not.

{about}

What to take from it: a pick costs microseconds whatever the length of the list, a request through
the pool a little more than one through a bare `itertools.cycle`, and next to a download over the
internet neither is noticed. It does cost something where requests are answered in a millisecond,
where Redis is far away and nothing is fetched ahead, and at the first request of each site with
`SMOOTHPOOL_SCOPE = "site"` and tens of thousands of proxies. Figures of other machines differ; the
ratios should not by much.
"""


def load(folder):
    """Return name → result of each part that has one."""
    found = {}
    for part in PARTS:
        path = folder / f"{part.name}.json"
        if path.exists():
            found[part.name] = json.loads(path.read_text(encoding="utf-8"))
    return found


def described(about):
    machine = about["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    rows = [
        f"| date | {about['date']} |",
        "| --- | --- |",
        f"| machine | {machine['cores']} cores, {machine['processor']}; {machine['system']} |",
        f"| versions | {versions} |",
        f"| commit | {about['commit']} |",
    ]
    return "\n".join(rows)


def render(results, *, command="make bench", note=""):
    """Return (the page, the plots that it shows)."""
    if not results:
        raise SystemExit("there are no results; make bench makes them")
    about = next(iter(results.values()))["about"]
    blocks = [HEAD.format(about=described(about), command=command, note=note)]
    plots = []
    for part in PARTS:
        if part.name not in results:
            continue
        result = results[part.name]
        text, shown = part.section(result["figures"])
        source = f"`{result['command']}`, {result['seconds']:.0f} s"
        if result["about"]["commit"] != about["commit"]:
            source += f", at commit {result['about']['commit']} on {result['about']['date']}"
        blocks.append(f"## {part.title}\n\n{text}\n\n{source}\n")
        plots += shown
    return "\n".join(blocks), plots


def write(results, page, *, plots=True, **words):
    """Write the page, and its plots into the folder `benchmarks` beside it."""
    text, shown = render(results, **words)
    page.write_text(text, encoding="utf-8")
    if plots:
        from plots import draw

        folder = page.parent / "benchmarks"
        folder.mkdir(exist_ok=True)
        for plot in shown:
            draw(folder / f"{plot['name']}.svg", plot)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=HERE / "results", metavar="FOLDER")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "performance.md")
    parser.add_argument("--no-plots", action="store_true")
    args = parser.parse_args()
    write(load(args.results), args.page, plots=not args.no_plots)


if __name__ == "__main__":
    main()
