"""What the papers' figures share."""

from __future__ import annotations

from matplotlib.figure import Figure

from stridebench.reports.papers.drawing import legend


def test_a_legend_of_long_names_stays_inside_its_figure() -> None:
    figure = Figure(figsize=(12, 5), layout="constrained")
    axes = figure.subplots()
    for i in range(7):
        axes.plot([0, 1], label=f"cross_regression horizon=8 mode=det beta=0.05 tau=-{i} clip=True")
    legend(figure, axes)
    [drawn] = figure.legends
    assert drawn.get_window_extent().width <= figure.bbox.width and len(drawn.get_texts()) == 7
