"""Programs as data: a traced function flattened to equations, and what can be asked of them.

`flatten` is the way in, `evaluate` the way out; `freeze` gives the key under which two equations
count as the same. Nothing here knows about initialisers, repeats or plans.
"""

from ._derivative import RULED as RULED
from ._derivative import derivative as derivative
from ._evaluate import as_weak_as as as_weak_as
from ._evaluate import evaluate as evaluate
from ._evaluate import read as read
from ._flatten import flatten as flatten
from ._freeze import freeze as freeze
from ._freeze import freeze_array as freeze_array
from ._program import (
    Equation as Equation,
)
from ._program import (
    Literal as Literal,
)
from ._program import (
    Operand as Operand,
)
from ._program import (
    Passed as Passed,
)
from ._program import (
    Program as Program,
)
from ._program import (
    Scope as Scope,
)
from ._program import (
    Value as Value,
)
from ._program import (
    is_key as is_key,
)
from ._program import (
    resolve as resolve,
)
from ._walk import (
    call_effects as call_effects,
)
from ._walk import (
    live_equations as live_equations,
)
from ._walk import (
    sub_jaxprs as sub_jaxprs,
)
