"""The parts of Stoker's dashboards: panels, their queries, and the variables by which they are narrowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from grafana_foundation_sdk.builders import (
    common,
    dashboard,
    heatmap,
    prometheus,
    stat,
    table,
    timeseries,
)
from grafana_foundation_sdk.models.common import (
    BigValueGraphMode,
    GraphDrawStyle,
    HeatmapCellLayout,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    FieldColorModeId,
    VariableRefresh,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

__all__ = ["ALL", "MODEL", "board", "columns", "heat", "lines", "number"]

SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${source}")
ALL: Final = 'job=~"$job", instance=~"$instance"'
"""Selects the servers that the dashboard shows."""
MODEL: Final = f'{ALL}, model=~"$model"'
"""Selects the models of those servers."""
_STATUSES: Final = {"^2..$": "green", "^4..$": "orange", "^5..$": "red"}


def board(uid: str, title: str, about: str, panels: Mapping[str, Sequence[object]]) -> dashboard.Dashboard:
    """Return a dashboard of rows of panels, by the rows' titles."""
    made = (
        dashboard.Dashboard(f"Stoker / {title}")
        .uid(uid)
        .description(about)
        .tags(["stoker"])
        .refresh("10s")
        .time("now-30m", "now")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .readonly()
        .link(dashboard.DashboardLink("Stoker").tags(["stoker"]).include_vars(True).keep_time(True))
        .with_variable(dashboard.DatasourceVariable("source").label("Prometheus").type("prometheus"))
    )
    for name, label, metric in (
        ("job", "Service", "stoker_ready_replicas"),
        ("instance", "Server", 'stoker_ready_replicas{job=~"$job"}'),
        ("model", "Model", 'stoker_ready_replicas{job=~"$job", instance=~"$instance"}'),
    ):
        made = made.with_variable(
            dashboard.QueryVariable(name)
            .label(label)
            .datasource(SOURCE)
            .query(f"label_values({metric}, {name})")
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .include_all(True)
            .all_value(".*")
            .multi(True)
        )
    for row, inside in panels.items():
        made = made.with_row(dashboard.Row(row))
        for panel in inside:
            made = made.with_panel(panel)
    return made


def _queries(queries: Mapping[str, str], *, instant: bool = False) -> list[prometheus.Dataquery]:
    made = []
    for place, (legend, expression) in enumerate(queries.items()):
        query = (
            prometheus.Dataquery()
            .expr(expression)
            .ref_id(chr(ord("A") + place))
            .legend_format(legend)
            .datasource(SOURCE)
        )
        made.append(query.instant() if instant else query.range())
    return made


def lines(
    title: str,
    about: str,
    unit: str,
    queries: Mapping[str, str],
    *,
    stacked: bool = False,
    most: float | None = None,
    wide: int = 8,
) -> timeseries.Panel:
    """Return curves over time.

    Args:
        title: What they show.
        about: How to read them.
        unit: Grafana's name of the unit.
        queries: Expressions by their legends, in which `{{label}}` is a label's value.
        stacked: Whether they are parts of a whole.
        most: The end of the axis.
        wide: Of the 24 columns of the page.
    """
    panel = (
        timeseries.Panel()
        .title(title)
        .description(about)
        .unit(unit)
        .datasource(SOURCE)
        .span(wide)
        .height(8)
        .min(0)
        .legend(common.VizLegendOptions().show_legend(True).placement(LegendPlacement.BOTTOM))
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
        .line_width(1)
        .fill_opacity(60 if stacked else 8)
        .draw_style(GraphDrawStyle.LINE)
        .targets(_queries(queries))
    )
    if most is not None:
        panel = panel.max(most)
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    if "{{status}}" in queries:
        for statuses, color in _STATUSES.items():
            fixed = DynamicConfigValue("color", {"mode": FieldColorModeId.SHADES.value, "fixedColor": color})
            panel = panel.override_by_regexp(statuses, [fixed])
    return panel


def number(title: str, about: str, unit: str, expression: str, *, decimals: int | None = None) -> stat.Panel:
    """Return one figure of now, with the curve that led to it behind it."""
    panel = (
        stat.Panel()
        .title(title)
        .description(about)
        .unit(unit)
        .datasource(SOURCE)
        .span(4)
        .height(4)
        .no_value("none")
        .graph_mode(BigValueGraphMode.AREA)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .targets(_queries({title: expression}))
    )
    return panel if decimals is None else panel.decimals(decimals)


def heat(title: str, about: str, unit: str, expression: str, *, wide: int = 8) -> heatmap.Panel:
    """Return how a histogram changes over time; `expression` gives its buckets by `le`."""
    query = (
        prometheus.Dataquery()
        .expr(expression)
        .ref_id("A")
        .legend_format("{{le}}")
        .format(PromQueryFormat.HEATMAP)
        .datasource(SOURCE)
        .range()
    )
    return (
        heatmap.Panel()
        .title(title)
        .description(about)
        .datasource(SOURCE)
        .span(wide)
        .height(8)
        .calculate(False)
        .cell_gap(1)
        .rows_frame(heatmap.RowsHeatmapOptions().layout(HeatmapCellLayout.LE))
        .y_axis(heatmap.YAxisConfig().unit(unit))
        .color(heatmap.HeatmapColorOptions().scheme("Viridis"))
        .targets([query])
    )


def columns(title: str, about: str, queries: Mapping[str, tuple[str, str]], *, by: str) -> table.Panel:
    """Return a table with a line for each value of the label `by`.

    Args:
        title: What it shows.
        about: How to read it.
        queries: By the titles of its columns: expressions, and Grafana's names of their units.
        by: The label that all of the expressions keep.
    """
    expressions = {name: expression for name, (expression, _) in queries.items()}
    targets = [query.format(PromQueryFormat.TABLE) for query in _queries(expressions, instant=True)]
    panel = (
        table.Panel().title(title).description(about).datasource(SOURCE).span(24).height(8).targets(targets)
    )
    for place, (name, (_, unit)) in enumerate(queries.items()):
        panel = panel.override_by_name(
            f"Value #{chr(ord('A') + place)}",
            [DynamicConfigValue("displayName", name), DynamicConfigValue("unit", unit)],
        )
    return panel.transformations(
        [
            DataTransformerConfig(id_val="merge", options={}),
            DataTransformerConfig(
                id_val="organize", options={"excludeByName": {"Time": True}, "indexByName": {by: 0}}
            ),
        ]
    )
