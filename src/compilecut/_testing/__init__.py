"""What stands behind `compilecut.testing`: running programs, and reading HLO text.

`_run` runs a function the way an assertion asks for, `_hlo` counts instructions, `_compiles` what
JAX does. The assertions, their messages and everything public are in `compilecut.testing`.
"""

from ._compiles import CompileCounts as CompileCounts
from ._compiles import listen as listen
from ._hlo import count_opcodes as count_opcodes
from ._hlo import hlo_text as hlo_text
from ._run import describe as describe
from ._run import run as run
from ._run import run_compiled as run_compiled
