"""Recorded sequences: ``.npz`` files with, for each seed N, ``seqN`` (arriving pods) and ``nodesN`` (order of
nodes).

Both are rows, counted from 0, of the pods and the nodes sorted by name. They fix what arrives, so that a figure
can be compared between simulators without their random numbers.
"""

import zipfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tessera.core.errors import Problem

Arrays = Mapping[str, NDArray[np.integer]]

_REMEDY: Final = "name a .npz file with arrays seqN and nodesN of whole numbers for each seed N"


def read_sequence(path: Path) -> Arrays | Problem:
    """The arrays of a sequence file, or what is wrong with it."""
    try:
        with np.load(BytesIO(path.read_bytes()), allow_pickle=False) as archive:
            if not isinstance(archive, np.lib.npyio.NpzFile):
                return Problem(str(path), "", "", "", "is one array and not an archive of them", _REMEDY)
            arrays = {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        return Problem(str(path), "", "", "", "is not there", "check the path")
    except OSError as error:
        return Problem(str(path), "", "", "", f"cannot be read: {error.strerror or error}", _REMEDY)
    except (ValueError, EOFError, zipfile.BadZipFile):
        return Problem(str(path), "", "", "", "is not an archive of arrays", _REMEDY)
    for name, array in arrays.items():
        if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
            return Problem(str(path), "", name, str(array.dtype), "is not a row of whole numbers", _REMEDY)
    return arrays
