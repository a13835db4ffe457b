"""The plots of the docs: lines and dots, readable on a light and on a dark page.

The ground is left transparent, text and axes are of a grey that stands out from both, and colours
are after Okabe and Ito's palette, with a marker and a label at each series.
"""

from __future__ import annotations

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt

GREY = "#767676"
BLUE, VERMILION = "#2585C4", "#D55E00"
COLOURS = (BLUE, VERMILION, "#009E73", "#CC79A7", GREY)
MARKERS = "osD^v"
mpl.rcParams.update(
    {
        "svg.fonttype": "none",
        "svg.hashsalt": "smoothpool",
        "font.family": "sans-serif",
        "font.size": 10,
        "text.color": GREY,
        "axes.labelcolor": GREY,
        "axes.edgecolor": GREY,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "xtick.color": GREY,
        "ytick.color": GREY,
        "axes.titlesize": 11,
    }
)


def draw(path, plot):
    """Draw a plot as `sections.py` describes it, as SVG."""
    kinds = {"lines": lines, "dots": dots}
    figure = kinds[plot["kind"]](**{k: v for k, v in plot.items() if k not in ("kind", "name")})
    # Without a date, so that the same figures give the same file.
    figure.savefig(path, transparent=True, metadata={"Date": None}, bbox_inches="tight")
    plt.close(figure)


def lines(title, series, x, y, *, log_x=True, log_y=True, ticks=None):
    """Draw {label: [(x, y), …]}, each line labelled at its end."""
    figure, axes = plt.subplots(figsize=(7, 3.6))
    ends = []
    for i, (label, points) in enumerate(series.items()):
        xs, ys = zip(*points, strict=True)
        colour = COLOURS[i % len(COLOURS)]
        axes.plot(xs, ys, color=colour, marker=MARKERS[i % len(MARKERS)], linewidth=1.8)
        ends.append((xs[-1], ys[-1], label, colour))
    if log_x:
        axes.set_xscale("log")
    if log_y:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    if ticks:
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.minorticks_off()
    figure.canvas.draw()
    _label_ends(axes, ends)
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.grid(axis="y", color=GREY, alpha=0.25, linewidth=0.6)
    return figure


def _label_ends(axes, ends):
    """Write each label beside its line's end, none over another."""
    place = axes.transData.transform
    free = None
    for x, y, label, colour in sorted(ends, key=lambda end: end[1]):
        _, height = place((x, y))
        low = height if free is None else max(height, free)
        free = low + 14
        axes.annotate(
            label,
            (x, y),
            xytext=(9, (low - height) * 72 / axes.figure.dpi),
            textcoords="offset points",
            va="center",
            color=colour,
        )


def dots(title, rows, x, *, reference=None, log_x=False, form="{:.2f}"):
    """Draw [(label, middle, low, high), …] from top to bottom, each with its figure."""
    figure, axes = plt.subplots(figsize=(7, 0.9 + 0.32 * len(rows)))
    own = {"smooth_wrr": BLUE, "least_used": VERMILION}
    for i, (label, middle, low, high) in enumerate(rows):
        colour = next((own[name] for name in own if label.startswith(name)), GREY)
        axes.plot([low, high], [i, i], color=colour, linewidth=2.2, solid_capstyle="round")
        axes.plot([middle], [i], marker="o", color=colour, markersize=6)
        axes.annotate(
            form.format(middle),
            (high, i),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            color=colour,
        )
    axes.set_yticks(range(len(rows)), [row[0] for row in rows])
    axes.invert_yaxis()
    axes.margins(x=0.15)
    if log_x:
        axes.set_xscale("log")
    if reference is not None:
        axes.axvline(reference, color=GREY, linewidth=1, linestyle=(0, (4, 3)))
    axes.set(title=title, xlabel=x)
    axes.grid(axis="x", color=GREY, alpha=0.25, linewidth=0.6)
    return figure
