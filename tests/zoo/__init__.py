"""Real programs as their users write them: Python loops, unmodified libraries, small sizes.

To add one, write a function that returns a function and its arguments, and a `Program` in the list
at the end of the family's file. `tests/test_zoo.py` does the rest.
"""

from . import (
    equinox_models,
    haiku_models,
    layers,
    linen,
    nnx_models,
    optimizers,
    recurrent,
    science,
    vision,
)
from .program import Program as Program

PROGRAMS: dict[str, Program] = {
    program.name: program
    for family in (
        linen,
        equinox_models,
        nnx_models,
        haiku_models,
        recurrent,
        vision,
        layers,
        optimizers,
        science,
    )
    for program in family.PROGRAMS
}
