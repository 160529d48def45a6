"""Where models come from: factories, files, programs, repositories."""
