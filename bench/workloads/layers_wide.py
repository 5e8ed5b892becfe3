"""W5 at width 128: as `layers.py`, to see what folding does to the run time of wider blocks."""

from workloads.layers import arms_at

ARMS = arms_at(128)
