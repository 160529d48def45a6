"""Draw leaves.png, the image that the examples analyse: a dead-leaves image with the statistics of natural ones."""

from pathlib import Path

from PIL import Image

from erfscope.core.images import synthetic

picture = synthetic("leaves", samples=1, seed=0, size=(384, 512), channels=3).pixels(0)
target = Path(__file__).with_name("leaves.png")
Image.fromarray(picture).save(target, optimize=True)
print(f"wrote {target.name}: {picture.shape[1]} x {picture.shape[0]}")
