"""A report as one self-contained HTML page, and results as fragments for notebooks. The one door to jinja2."""

from erfscope.page.document import html
from erfscope.page.fragment import report_fragment, result_fragment

__all__ = ["html", "report_fragment", "result_fragment"]
