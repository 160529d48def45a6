"""Pages of HTML in the style of a report's."""

from erfscope.view.page import assets, template_of

__all__ = ["assets", "template_of"]
