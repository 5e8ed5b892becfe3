"""What a plan becomes, told to the user: `FoldReport`.

`_build.py` makes it of a plan, `_lines.py` finds the user's lines, `_near.py` the blocks that are
almost like the others, `_skips.py` says why something isn't folded, `_print.py` prints. Nothing
here decides anything.
"""

from ._build import report as report
from ._data import FoldedRepeat as FoldedRepeat
from ._data import FoldReport as FoldReport
from ._data import FoldSkip as FoldSkip
from ._data import Setting as Setting
