"""The public names for type checkers; `late.PUBLIC` reads them here, so this is their only list.

Each line is `from .MODULE import NAME as NAME`, in this form alone.
"""

from typing import Any

from . import checkpoint as checkpoint
from . import course as course
from . import programs as programs
from .configs.reader import read_settings as read_settings
from .count import memory as memory
from .count import reconcile as reconcile
from .count.wire import traffic as traffic
from .count.zero_map import zero as zero
from .course.incidents import incidents as incidents
from .describe.job import Job as Job
from .describe.jobs import JOBS as JOBS
from .describe.layout import AXES as AXES
from .describe.layout import Layout as Layout
from .describe.layout import LayoutLike as LayoutLike
from .describe.models import PRESETS as PRESETS
from .describe.models import ModelConfig as ModelConfig
from .describe.models import ModelLike as ModelLike
from .describe.models import model as model
from .describe.rope import RopeScaling as RopeScaling
from .describe.splits import Padding as Padding
from .diagnosis import Diagnosis as Diagnosis
from .diagnosis import Explanation as Explanation
from .diagnosis import explain as explain
from .diagnosis.debugging import debug as debug
from .diagnosis.error_hook import watch_errors as watch_errors
from .errors import CheckpointError as CheckpointError
from .errors import LayoutError as LayoutError
from .errors import LlamaparError as LlamaparError
from .errors import ModelError as ModelError
from .errors import PeerError as PeerError
from .execution.execute import run as run
from .execution.execute import tape as tape
from .execution.modules import compare as compare
from .execution.recorder import record as record
from .execution.replies import Cancelled as Cancelled
from .execution.replies import RankFailure as RankFailure
from .execution.result import Absent as Absent
from .execution.shrinking import shrink as shrink
from .figures import View as View
from .figures import view as view
from .frameworks import FRAMEWORKS as FRAMEWORKS
from .frameworks.settings import Settings as Settings
from .nodes.loading import loading as loading
from .panels.clinic_panel import clinic as clinic
from .panels.explorer_panel import explorer as explorer
from .panels.live_panel import live as live
from .panels.watch_panel import watch as watch
from .place import ffn as ffn
from .place import heads as heads
from .place import ranks as ranks
from .place import sequence as sequence
from .place import stages as stages
from .place import vocab as vocab
from .place.pipeline import Schedule as Schedule
from .place.schedule import schedule as schedule
from .rules.report import Report as Report
from .rules.report import check as check
from .rules.report import require as require
from .timing.cost import cost as cost
from .timing.inside import inside as inside
from .timing.plan import plan as plan
from .timing.reasons import reasons as reasons

__version__: str

def load_ipython_extension(shell: Any) -> None: ...
def unload_ipython_extension(shell: Any) -> None: ...
