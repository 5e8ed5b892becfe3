"""Does a folded program compute what the original does? Decided from the two programs alone.

This is translation validation: the result is checked, not the translator. Both programs are read
as terms, in which equal computations are one object. Calls are looked into, loops that only the
folded program has are run through, stacks and slices cancel. What is left must be the same, output
by output. Nothing here is shared with the code that finds, proves and emits.

References: Necula, "Translation validation for an optimizing compiler" (2000); Lopes et al.,
"Alive2: bounded translation validation for LLVM" (2021).
"""

from ._compare import first_difference as first_difference
from ._terms import Rows as Rows
from ._terms import Term as Term
from ._terms import Terms as Terms
