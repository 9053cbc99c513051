"""Contact sheets: many small pictures in one, for notebooks and the book."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def contact_sheet(
    images: npt.NDArray[np.uint8],
    labels: npt.NDArray[np.integer],
    rows: int = 10,
    cols: int = 12,
    gap: int = 1,
) -> npt.NDArray[np.uint8]:
    """A grid of pictures, uint8 (H, W, 3): row r holds the first ``cols`` pictures labelled r.

    images: uint8 (n, C, h, w) with C 1 or 3; labels: int (n,), a class or the number of a domain.
    gap: white pixels between pictures; places with no picture left are white.
    Raises ValueError where shapes disagree.
    """
    if images.ndim != 4 or images.shape[1] not in (1, 3) or len(labels) != len(images):
        raise ValueError(f"need (n, 1|3, h, w) and (n,), got {images.shape} and {labels.shape}")
    height, width = images.shape[2:]
    sheet = np.full((rows * (height + gap) - gap, cols * (width + gap) - gap, 3), 255, np.uint8)
    for row in range(rows):
        for col, index in enumerate(np.flatnonzero(labels == row)[:cols]):
            y, x = row * (height + gap), col * (width + gap)
            # a grey picture's one channel spreads over the three of the sheet
            sheet[y : y + height, x : x + width] = images[index].transpose(1, 2, 0)
    return sheet
