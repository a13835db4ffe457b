"""Runs every benchmark and writes its JSON, the plots and docs/performance.md: `make bench`.

Measures nothing itself. Each result says when, where, with which versions and at which commit it
was made. A script that fails does not keep the others from running; the command fails at the end
and names it. What must hold and does not is named, too, but fails nothing: on a machine that does
something else at the same time it may be the machine's fault.

Usage: python benchmarks/run_all.py [--quick | --long] [--only NAME …] [--results FOLDER]
                                    [--page FILE]

With `--long` the crawls whose memory is looked at have 200,000 requests, which alone takes a
quarter of an hour. A short look (`--quick`) leaves docs/ alone and writes into
benchmarks/results/quick/.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import page
from common import HERE, ROOT, about
from parts import PARTS
from sections import promises


def run(part, arguments, here, results):
    """Run one script; return whether it succeeded."""
    command = f"python benchmarks/{part.script} {arguments}".strip()
    print(f"\n=== {part.title}: {command}", flush=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "figures.json"
        done = subprocess.run(
            [
                sys.executable,
                str(HERE / part.script),
                *shlex.split(arguments),
                *("--json", str(found)),
            ],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode or not found.exists():
            print(f"!!! {part.script} failed ({done.returncode})", flush=True)
            return False
        figures = json.loads(found.read_text(encoding="utf-8"))
    result = {
        "about": here,
        "command": command,
        "seconds": time.monotonic() - started,
        "figures": figures,
    }
    text = json.dumps(result, indent=1, ensure_ascii=False) + "\n"
    (results / f"{part.name}.json").write_text(text, encoding="utf-8")
    return True


def main():
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a short look")
    parser.add_argument("--long", action="store_true", help="memory over 200,000 requests")
    parser.add_argument("--only", nargs="+", default=names, choices=names, metavar="NAME")
    parser.add_argument("--results", type=Path, metavar="FOLDER")
    parser.add_argument("--page", type=Path, metavar="FILE")
    args = parser.parse_args()
    quick = HERE / "results" / "quick"
    results = args.results or (quick if args.quick else HERE / "results")
    target = args.page or (quick / "page.md" if args.quick else ROOT / "docs" / "performance.md")
    results.mkdir(parents=True, exist_ok=True)
    here, failed, started = about(), [], time.monotonic()
    for part in PARTS:
        arguments = part.quick if args.quick else part.arguments
        if args.long and part.long is not None:
            arguments = part.long
        if part.name in args.only and not run(part, arguments, here, results):
            failed.append(part.name)
    found = page.load(results)
    if found:
        words = {}
        if args.quick:
            words = {"command": "make bench QUICK=1", "note": "**A short look, no measurement.** "}
        page.write(found, target, **words)
    print(f"\n{time.monotonic() - started:.0f} s; {target} and {results}")
    for name, result in found.items():
        for one in promises(result["figures"]):
            if not one["holds"]:
                print(f"does not hold ({name}): {one['what']}: {one['figure']:.2f}")
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
