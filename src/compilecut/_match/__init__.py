"""Finding repeats in a program, and proving that they are what they seem.

    fingerprint -> runs -> rows -> prove -> order

`_find.py` drives. A repeat that comes out is proven; whether and how it is folded is `_plan.py`'s.
"""

from ._align import align as align
from ._elementwise import only_moves as only_moves
from ._find import Found as Found
from ._find import find as find
from ._fingerprint import fingerprints as fingerprints
from ._fingerprint import weights as weights
from ._labels import Sources as Sources
from ._order import Step as Step
from ._order import can_run as can_run
from ._order import order as order
from ._pieces import Piece as Piece
from ._pieces import pieces as pieces
from ._prove import block_key as block_key
from ._repeat import Call as Call
from ._repeat import FoundRepeat as FoundRepeat
from ._repeat import Mismatch as Mismatch
from ._roles import Loop as Loop
from ._roles import Source as Source
from ._roles import as_loops as as_loops
from ._roles import element_sources as element_sources
