"""What older releases of timm, which erfscope works with, do not have."""

from __future__ import annotations

import pytest
import timm

TIMM = tuple(map(int, timm.__version__.split(".")[:3]))
needs_folders = pytest.mark.skipif(TIMM < (1, 0, 26), reason="timm before 1.0.26 reads no folders with safetensors")
needs_meta_transformers = pytest.mark.skipif(TIMM < (1, 0, 22), reason="timm before 1.0.22 builds ViTs with numbers")
needs_channels = pytest.mark.skipif(TIMM < (1, 0, 26), reason="models of timm before 1.0.26 do not state in_chans")
