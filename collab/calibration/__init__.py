"""What the scores of real inputs need: data → batches → moments for each attention layer.

`calibrate` is the one call for all of it.
"""

from .calibrate import Calibration, CalibrationOptions, calibrate
from .data import DataSource, read_rows
from .moments import LayerMoments

__all__ = ["Calibration", "CalibrationOptions", "DataSource", "LayerMoments", "calibrate", "read_rows"]
