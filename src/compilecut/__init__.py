"""Compile the repeated structure of a JAX program once, as it was written."""

from . import testing as testing
from ._chunks import scan_chunks as scan_chunks
from ._errors import (
    CheckError as CheckError,
)
from ._errors import (
    ChunkError as ChunkError,
)
from ._errors import (
    ChunkTypeError as ChunkTypeError,
)
from ._errors import (
    CompilecutError as CompilecutError,
)
from ._errors import (
    CompilecutWarning as CompilecutWarning,
)
from ._errors import (
    InputError as InputError,
)
from ._errors import (
    ShardingError as ShardingError,
)
from ._fold import Folded as Folded
from ._fold import explain as explain
from ._fold import fold as fold
from ._fold_report import FoldedRepeat as FoldedRepeat
from ._fold_report import FoldReport as FoldReport
from ._fold_report import FoldSkip as FoldSkip
from ._init._stacks import Stacks as Stacks
from ._packed import Packed as Packed
from ._report import (
    Repeat as Repeat,
)
from ._report import (
    Report as Report,
)
from ._report import (
    Skip as Skip,
)
from ._report import (
    SkipReason as SkipReason,
)
from ._stacked import (
    CompiledInit as CompiledInit,
)
from ._stacked import (
    LoweredInit as LoweredInit,
)
from ._stacked import (
    StackedInit as StackedInit,
)
from ._stacked import (
    stacked_init as stacked_init,
)
from ._stacked import (
    stacked_sites as stacked_sites,
)

__version__ = "0.1.0"
