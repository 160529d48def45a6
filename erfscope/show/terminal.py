"""What applications draw in the terminal; it imports rich."""

from erfscope.show.view.terminal.table import TerminalTable, draw_parts

__all__ = ["TerminalTable", "draw_parts"]
