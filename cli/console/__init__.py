"""What the terminal is: streams, colours, widths, messages."""
