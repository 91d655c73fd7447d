"""What the scores of real inputs need: data → batches → moments for each attention layer.

`calibrate` is the one call for all of it.
"""

from .calibrate import Calibration, CalibrationOptions, calibrate
from .moments import LayerMoments

__all__ = ["Calibration", "CalibrationOptions", "LayerMoments", "calibrate"]
