"""How results are shown: by functions above them, which are found by name when they are first used."""

from __future__ import annotations

import importlib
from typing import Any

#: What draws, writes or stores results and reports, by kind, as ``module:function``.
RENDERERS = {
    "result_view": "erfscope.view.terminal.report:draw_result",
    "report_view": "erfscope.view.terminal.report:draw_report",
    "tile_view": "erfscope.tiling.shown:tile_view",
    "tile_figure": "erfscope.figures.tiles:tile_figure",
    "tile_line": "erfscope.tiling.shown:tile_headline",
    "advice_view": "erfscope.advice.shown:advice_view",
    "advice_text": "erfscope.advice.shown:advice_text",
    "advice_html": "erfscope.advice.shown:advice_html",
    "front_figure": "erfscope.advice.shown_search:search_figure",
    "advice_json": "erfscope.advice.shown:advice_json",
    "layers_view": "erfscope.view.terminal.layers:layer_view",
    "layers_text": "erfscope.view.terminal.layers:layer_text",
    "layers_html": "erfscope.view.terminal.layers:layer_html",
    "layers_dataframe": "erfscope.view.terminal.layers:layer_dataframe",
    "tile_text": "erfscope.tiling.shown:tile_text",
    "tile_html": "erfscope.tiling.shown:tile_html",
    "text": "erfscope.view.terminal.report:plain_text",
    "result_line": "erfscope.view.sentences:result_line",
    "report_line": "erfscope.view.sentences:report_line",
    "result_fragment": "erfscope.api.page:result_fragment",
    "report_fragment": "erfscope.api.page:report_fragment",
    "figure": "erfscope.figures.draw:figure_of",
    "table": "erfscope.view.tables:text_table",
    "dataframe": "erfscope.view.tables:dataframe",
    "json": "erfscope.storage.json_format:report_to_json",
    "save": "erfscope.api.save:save",
    "save_result": "erfscope.api.save:save_result",
}


def render(kind: str, *args: Any, **options: Any) -> Any:
    """Show results in one of the ways of :data:`RENDERERS`; arguments and return value are those of its function."""
    module, _, function = RENDERERS[kind].partition(":")
    return getattr(importlib.import_module(module), function)(*args, **options)
