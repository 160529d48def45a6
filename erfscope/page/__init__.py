"""A report as one HTML file, and fragments for notebooks; the one door to jinja2.

May import: ``figures`` and below.
"""

from erfscope.page.document import html
from erfscope.page.fragment import report_fragment, result_fragment

__all__ = ["html", "report_fragment", "result_fragment"]
